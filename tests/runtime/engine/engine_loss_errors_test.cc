// The error of a loss function that throws names the operation, the parameters and the module from
// which it came if LibTorch knew them, and has a backtrace on request.
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_loss_errors_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankContext;
using ::testing::StartsWith;

constexpr const char* kSecondLayer =
    "; aten::addmm failed, which reads second.weight and second.bias of second "
    "(torch::nn::LinearImpl)";
constexpr const char* kHint = "DTRAIN_BACKTRACE=1";

struct Words {
  absl::StatusOr<at::Tensor> Next() { return at::arange(4, at::kLong); }
};

class Net : public torch::nn::Module {
 public:
  Net() {
    table = register_module("table", torch::nn::Embedding(11, 8));
    first = register_module("first", torch::nn::Linear(8, 16));
    second = register_module("second", torch::nn::Linear(16, 4));
    table->weight.set_requires_grad(false);  // Frozen parameters have names too.
  }
  at::Tensor First(const at::Tensor& words) { return first(table(words)).relu(); }
  // Gives `second` a width that it does not take.
  at::Tensor TooNarrow(const at::Tensor& words) {
    return second(First(words).narrow(1, 0, 5)).sum();
  }
  at::Tensor Loss(const at::Tensor& words) { return second(First(words)).sum(); }

  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
};

class FailsInBackward : public torch::autograd::Function<FailsInBackward> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* /*context*/,
                                               const torch::autograd::tensor_list& /*gradients*/) {
    throw std::runtime_error("on purpose");
  }
};

// One rank, whose failed steps may be taken again, at a ZeRO stage.
class LossErrors : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    auto job = testing::MakeChainJob(nullptr, folder_.path(), {.stage = GetParam()});
    ASSERT_TRUE(job.ok()) << job.status();
    job_ = *std::move(job);
  }
  void MakeEngine() {
    auto engine = Engine::Create(*job_, net_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  // The error's one line; "": none.
  std::string Step(absl::FunctionRef<at::Tensor(const at::Tensor&)> loss) {
    return Line(engine_->Step(source_, loss).status());
  }
  std::string Evaluate(absl::FunctionRef<at::Tensor(const at::Tensor&)> loss) {
    return Line(engine_->Evaluate(source_, loss).status());
  }
  at::Tensor Good(const at::Tensor& words) { return net_.Loss(words); }
  at::Tensor TooNarrow(const at::Tensor& words) { return net_.TooNarrow(words); }
  at::Tensor UnknownWord(const at::Tensor& words) { return net_.Loss(words + 8); }

  static std::string Line(const absl::Status& status) {
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
    return std::string(status.message());
  }

  testing::TempFolder folder_;
  std::unique_ptr<Job> job_;
  Net net_;
  std::unique_ptr<Engine> engine_;
  Words source_;
};

INSTANTIATE_TEST_SUITE_P(Stages, LossErrors, ::testing::Values(0, 1, 2, 3));

// First: ranks are processes that are forked before this one has threads.
TEST(LossErrorsOfRanks, NameTheModuleWhereWeightsAreSharedOut) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    // Small parameters stay whole: what they are read for is known too.
    DT_ASSIGN_OR_RETURN(
        auto job,
        testing::MakeChainJob(
            &context, folder.path(),
            {.stage = 3, .more = {"zero_optimization.stage3_param_persistence_threshold=20"}}));
    Net net;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
    Words source;
    for (int i = 0; i < 2; ++i) {
      DT_RETURN_IF_ERROR(
          engine->Step(source, [&](const at::Tensor& words) { return net.Loss(words); }).status());
    }
    return engine->Step(source, [&](const at::Tensor& words) { return net.TooNarrow(words); })
        .status();
  });
  for (const auto& result : results) {
    EXPECT_THAT(std::string(result.status.message()),
                AllOf(StartsWith("in the loss function: mat1 and mat2 shapes"),
                      HasSubstr(kSecondLayer), Not(HasSubstr("\n"))));
  }
}

TEST_P(LossErrors, NameTheParametersOfAnOperationThatFails) {
  MakeEngine();
  const std::string line = Step([&](const at::Tensor& words) { return TooNarrow(words); });
  EXPECT_THAT(line, StartsWith("in the loss function: mat1 and mat2 shapes cannot be multiplied "
                               "(4x5 and 16x4)"));
  EXPECT_THAT(line, EndsWith(absl::StrCat(kSecondLayer, "; ", kHint, " logs a backtrace")));
  EXPECT_THAT(
      Step([&](const at::Tensor& words) { return UnknownWord(words); }),
      AllOf(HasSubstr("index out of range"), HasSubstr(" failed, which reads table.weight of table "
                                                       "(torch::nn::EmbeddingImpl)")));
  EXPECT_EQ(Step([&](const at::Tensor& words) { return Good(words); }), "");
}

TEST_P(LossErrors, NameWhatWasReadBeforeAnExceptionOfTheProgram) {
  MakeEngine();
  EXPECT_EQ(Step([&](const at::Tensor& words) -> at::Tensor {
              net_.First(words);
              throw std::runtime_error("bad sample\nof many lines");
            }),
            "in the loss function: bad sample; read last: first.weight and first.bias of first "
            "(torch::nn::LinearImpl)");
  // An operation's failure that the program handles is not what the step failed with.
  EXPECT_EQ(Step([&](const at::Tensor& words) -> at::Tensor {
              try {
                return TooNarrow(words);
              } catch (const c10::Error&) {
                words.add(1);
              }
              throw std::runtime_error("bad sample");
            }),
            "in the loss function: bad sample; read last: second.weight and second.bias of second "
            "(torch::nn::LinearImpl)");
  // Parameters that an earlier forward read are not named.
  EXPECT_EQ(Step([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("bad sample"); }),
            "in the loss function: bad sample");
}

TEST_P(LossErrors, OfAnEvaluationNameTheModuleToo) {
  MakeEngine();
  ASSERT_EQ(Step([&](const at::Tensor& words) { return Good(words); }), "");
  EXPECT_THAT(Evaluate([&](const at::Tensor& words) { return TooNarrow(words); }),
              AllOf(StartsWith("in the loss function of an evaluation: mat1 and mat2"),
                    HasSubstr(kSecondLayer)));
}

TEST_P(LossErrors, OfBackwardNameWhatItReadLast) {
  MakeEngine();
  EXPECT_EQ(Step([&](const at::Tensor& words) {
              return net_.second(FailsInBackward::apply(net_.First(words))).sum();
            }),
            "in backward: on purpose; read last: second.weight of second (torch::nn::LinearImpl)");
}

// Operations are observed at stage 3 anyway; elsewhere a forward that has gone well once is not.
TEST_P(LossErrors, OfLaterStepsSayWhatIsKnown) {
  MakeEngine();
  bool observed = false;
  const auto good = [&](const at::Tensor& words) {
    observed = at::hasCallbacks();
    return Good(words);
  };
  ASSERT_EQ(Step(good), "");
  EXPECT_TRUE(observed);
  ASSERT_EQ(Step(good), "");
  EXPECT_EQ(observed, GetParam() == 3) << "a step that goes well must cost nothing";
  ASSERT_EQ(Evaluate(good), "");
  EXPECT_TRUE(observed);
  ASSERT_EQ(Evaluate(good), "");
  EXPECT_EQ(observed, GetParam() == 3);

  const std::string unknown = Step([&](const at::Tensor& words) { return UnknownWord(words); });
  const std::string narrow = Step([&](const at::Tensor& words) { return TooNarrow(words); });
  const std::string own = Step([&](const at::Tensor& words) -> at::Tensor {
    net_.First(words);
    throw std::runtime_error("bad sample");
  });
  if (GetParam() == 3) {
    EXPECT_THAT(unknown, HasSubstr(" failed, which reads table.weight of table"));
    EXPECT_THAT(narrow, HasSubstr(kSecondLayer));
    EXPECT_THAT(own, HasSubstr("; read last: first.weight and first.bias of first"));
    return;
  }
  // LibTorch's backtrace names the type whose forward ran, and the model may have one of it.
  EXPECT_THAT(unknown, HasSubstr("; in torch::nn::EmbeddingImpl::forward, of which the model has "
                                 "one: table; DTRAIN_BACKTRACE=1 logs a backtrace"));
  EXPECT_THAT(narrow,
              AllOf(HasSubstr("; in torch::nn::LinearImpl::forward; DTRAIN_BACKTRACE=1 names the "
                              "parameters that were read last and logs a backtrace"),
                    Not(HasSubstr("second"))));
  EXPECT_EQ(own,
            "in the loss function: bad sample; DTRAIN_BACKTRACE=1 names the parameters that were "
            "read last");
}

TEST_P(LossErrors, NameTheModuleInEveryStepAndLogABacktraceOnRequest) {
  ASSERT_EQ(setenv("DTRAIN_BACKTRACE", "1", 1), 0);
  MakeEngine();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Step([&](const at::Tensor& words) { return Good(words); }), "");
  }
  ::testing::internal::CaptureStderr();
  const std::string line = Step([&](const at::Tensor& words) { return TooNarrow(words); });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(line, AllOf(EndsWith(kSecondLayer), Not(HasSubstr(kHint))));
  EXPECT_THAT(log, AllOf(HasSubstr("backtrace of the exception in the loss function:\n"),
                         HasSubstr("frame #0: "), HasSubstr("torch::nn::LinearImpl::forward")));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Step([&](const at::Tensor&) -> at::Tensor { throw std::runtime_error("bad sample"); }),
            "in the loss function: bad sample");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("the exception in the loss function carries no backtrace"));
  unsetenv("DTRAIN_BACKTRACE");
}

// A GPU's error is met by a later operation, which has nothing to do with it.
TEST_P(LossErrors, OfAGpuBlameNoParameter) {
  MakeEngine();
  EXPECT_EQ(Step([&](const at::Tensor& words) -> at::Tensor {
              net_.First(words);
              throw std::runtime_error("CUDA error: device-side assert triggered");
            }),
            "in the loss function: CUDA error: device-side assert triggered");
}

}  // namespace
}  // namespace dtrain::engine_loss_errors_test
