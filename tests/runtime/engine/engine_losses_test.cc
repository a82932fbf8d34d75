// Several losses of one micro-batch, and several engines in one program and one checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/fp8.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_losses_test {
namespace {

using testing::Chain;
using ::testing::HasSubstr;
using testing::MakeChainJob;
using testing::RankContext;
using testing::Tokens;

double SumOf(const Chain& model) {
  double sum = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor wide = parameter.detach().to(at::kDouble).flatten();
    sum += (wide * (at::arange(wide.numel(), at::kDouble).remainder(7) + 1)).sum().item<double>();
  }
  return sum;
}

// Runs `body` on two ranks, each with an array to fill; what they filled, which must be equal.
std::vector<double> OnTwoRanks(
    const std::function<absl::Status(RankContext&, std::vector<double>&)>& body) {
  auto cluster = testing::Cluster::Start({.size = 2}, [&](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    std::vector<double> numbers;
    DT_RETURN_IF_ERROR(body(context, numbers));
    return context.store->Set(absl::StrCat("numbers/", context.rank), DumpJson(Json(numbers)),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::string> texts;
  for (int rank = 0; rank < 2; ++rank) {
    texts.push_back((*cluster)->Result(absl::StrCat("numbers/", rank)).value_or("[]"));
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  EXPECT_EQ(texts[0], texts[1]);
  return ParseJson(texts[0], "numbers")->get<std::vector<double>>();
}

enum class Give { kSum, kOneAfterTheOther };

// Loss and weights of three steps with a second loss on the same graph.
std::vector<double> WithTwoLosses(int stage, Give give) {
  return OnTwoRanks([=](RankContext& context, std::vector<double>& numbers) -> absl::Status {
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {.stage = stage}));
    at::manual_seed(2);
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size};
    for (int i = 0; i < 3; ++i) {
      DT_ASSIGN_OR_RETURN(const at::Tensor tokens, source.Next());
      const at::Tensor main = model.Loss(tokens);
      // Reaches what the main loss never does, and what it does.
      const at::Tensor more = 0.3 * main.square() / 100 + model.unused.square().sum();
      if (give == Give::kSum) {
        DT_RETURN_IF_ERROR(engine->Backward(Loss(main + more, tokens.size(0))));
      } else {
        DT_RETURN_IF_ERROR(engine->Backward(Loss(main, tokens.size(0)),
                                            {.last_micro_batch = false, .retain_graph = true}));
        DT_RETURN_IF_ERROR(engine->Backward(Loss(more, 0)));
      }
      DT_ASSIGN_OR_RETURN(const StepReport report, engine->Update());
      numbers.push_back(report.loss);
    }
    return engine->WithParameters([&] { numbers.push_back(SumOf(model)); });
  });
}

TEST(SeveralLossesTest, GivenOneAfterTheOtherTrainAsTheirSumAtEveryStage) {
  const std::vector<double> plain = WithTwoLosses(0, Give::kSum);
  ASSERT_EQ(plain.size(), 4U);
  for (const int stage : {0, 1, 2, 3}) {
    const std::vector<double> apart = WithTwoLosses(stage, Give::kOneAfterTheOther);
    ASSERT_EQ(apart.size(), 4U);
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_NEAR(apart[i], plain[i], 2e-5 * std::abs(plain[i])) << "stage " << stage << ", " << i;
    }
  }
}

struct Tutored {
  int stage = 0;
  bool teacher_first = true;
  bool student = true;  // False: the teacher trains alone.
  std::vector<std::string> more = {};
};

// A teacher, and a student that learns from it: to step `until`, from what the folder holds.
absl::Status Learn(RankContext& context, const std::string& folder, const Tutored& way, int until,
                   std::vector<double>& numbers) {
  std::vector<std::string> more = {"checkpoint.interval=3"};
  more.insert(more.end(), way.more.begin(), way.more.end());
  DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder, {.stage = way.stage, .more = more}));
  at::manual_seed(9);
  Chain teacher;
  Chain student;
  DT_ASSIGN_OR_RETURN(auto first, Engine::Create(*job, teacher));
  DT_ASSIGN_OR_RETURN(auto second, Engine::Create(*job, student));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  if (way.teacher_first) {
    checkpoints->Track("teacher", *first);
  }
  if (way.student) {
    checkpoints->Track("student", *second);
  }
  if (!way.teacher_first) {
    checkpoints->Track("teacher", *first);
  }
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  Tokens source{.call = first->step(), .rank = context.rank, .size = context.size};
  while (first->step() < until) {
    DT_ASSIGN_OR_RETURN(const at::Tensor tokens, source.Next());
    DT_RETURN_IF_ERROR(first->Backward(Loss(teacher.Loss(tokens), tokens.size(0))));
    DT_ASSIGN_OR_RETURN(const StepReport taught, first->Update());
    // Twice a step, so that the two engines' numbers of steps differ.
    for (int i = 0; i < 2; ++i) {
      const at::Tensor goal = teacher.weights[0].detach();
      const at::Tensor apart = (student.weights[0] - goal).square().sum();
      DT_RETURN_IF_ERROR(second->Backward(Loss(student.Loss(tokens) + apart, tokens.size(0))));
      DT_ASSIGN_OR_RETURN(const StepReport learnt, second->Update());
      numbers.push_back(learnt.loss);
    }
    numbers.push_back(taught.loss);
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(first->step()));
  }
  if (second->step() != 2 * first->step()) {
    return absl::InternalError("the student's steps were lost");
  }
  DT_RETURN_IF_ERROR(first->WithParameters([&] { numbers.push_back(SumOf(teacher)); }));
  return second->WithParameters([&] { numbers.push_back(SumOf(student)); });
}

std::vector<double> Learned(const std::string& folder, const Tutored& way, int until) {
  return OnTwoRanks([&](RankContext& context, std::vector<double>& numbers) {
    return Learn(context, folder, way, until, numbers);
  });
}

std::vector<double> Tail(const std::vector<double>& numbers, size_t count) {
  return {numbers.end() - static_cast<std::ptrdiff_t>(count), numbers.end()};
}

TEST(SeveralEnginesTest, ResumeTogetherFromOneCheckpointAtAnyStage) {
  const testing::TempFolder straight;
  const std::vector<double> whole = Learned(straight.path(), {}, 5);
  ASSERT_EQ(whole.size(), 5U * 3 + 2);
  for (const auto& [saved, resumed] : {std::pair(0, 0), std::pair(0, 3), std::pair(3, 1)}) {
    const testing::TempFolder folder;
    Learned(folder.path(), {.stage = saved}, 3);
    EXPECT_EQ(Learned(folder.path(), {.stage = resumed}, 5), Tail(whole, 2 * 3 + 2))
        << "saved at stage " << saved << ", resumed at " << resumed;
  }
}

// Learns with a weight of another module, which stays as that one's engine has it.
class Pupil : public torch::nn::Module {
 public:
  explicit Pupil(const at::Tensor& lent) {
    own = register_parameter("own", at::randn({64, 64}) * 0.1);
    shared = register_parameter("shared", lent, /*requires_grad=*/false);
  }
  at::Tensor Loss(const at::Tensor& x) const {
    return ops::Fp8Linear(at::linear(x, own), shared, {}, {.enabled = true}).square().sum();
  }
  at::Tensor own, shared;
};

// Its codes are kept from micro-batch to micro-batch, and an update moves no counter of LibTorch's.
TEST(SeveralEnginesTest, AWeightThatAnotherOneUpdatesInTheMidstOfAStepIsReadAnewInFp8) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = *MakeChainJob(nullptr, folder.path(), {.stage = 0, .accumulation = 2});
  at::manual_seed(9);
  Chain teacher;
  auto teaches = *Engine::Create(*job, teacher);
  at::Tensor shared = teacher.weights[0];
  Pupil pupil(shared);
  auto created = Engine::Create(*job, pupil);
  ASSERT_TRUE(created.ok()) << created.status();
  Engine& learns = **created;
  const at::Tensor x = at::randn({16, 64});
  const absl::Status first = learns.Backward(Loss(pupil.Loss(x), 16), {.last_micro_batch = false});
  ASSERT_TRUE(first.ok()) << first;
  double before = 0;
  {
    const at::NoGradGuard no_grad;
    before = pupil.Loss(x).item<double>();  // From here on its codes are kept.
  }
  shared.set_requires_grad(true);
  Tokens source{.accumulation = 2};
  const auto taught = teaches->Step(
      source, [&](const at::Tensor& tokens) { return Loss(teacher.Loss(tokens), tokens.size(0)); });
  ASSERT_TRUE(taught.ok()) << taught.status();
  shared.set_requires_grad(false);
  {
    const at::NoGradGuard no_grad;
    const double read = pupil.Loss(x).item<double>();
    pupil.shared = shared.clone();  // Nobody keeps codes of the clone.
    EXPECT_EQ(read, pupil.Loss(x).item<double>());
    EXPECT_NE(read, before);
  }
}

TEST(SeveralEnginesTest, WhatDoesNotMatchACheckpointIsNamed) {
  const testing::TempFolder both;
  Learned(both.path(), {}, 3);
  const testing::TempFolder teacher;
  Learned(teacher.path(), {.student = false}, 3);
  const auto error = [](const std::string& folder, const Tutored& way) {
    const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) {
      at::set_num_threads(1);
      std::vector<double> numbers;
      return Learn(context, folder, way, 4, numbers);
    });
    EXPECT_EQ(results[0].status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(results[0].status.message());
  };
  EXPECT_THAT(error(both.path(), {.teacher_first = false}),
              HasSubstr("was saved with \"teacher\" as the first of several engines, this program "
                        "tracks \"student\" first"));
  EXPECT_THAT(error(teacher.path(), {}), HasSubstr("holds no engine \"student\""));
}

}  // namespace
}  // namespace dtrain::engine_losses_test
