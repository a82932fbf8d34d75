// ZeRO stage 3: weights that are there while they are read, on every way a model reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/ops.h"
#include "runtime/engine/engine_state.h"
#include "tests/runtime/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

using ::testing::HasSubstr;
using testing::RankContext;

constexpr int64_t kWidth = 64;
constexpr int64_t kLayers = 7;

// Several buckets of odd layout: a chain of layers, a norm with a fused kernel, weights read
// through views and lists, one weight used at both ends, one never.
class Chain : public torch::nn::Module {
 public:
  Chain() {
    const auto make = [this](const std::string& name, at::IntArrayRef shape) {
      return register_parameter(name, at::randn(shape) * 0.1);
    };
    table = make("table", {101, kWidth});
    norm = make("norm", {kWidth});
    for (int64_t i = 0; i < kLayers; ++i) {
      weights.push_back(make(absl::StrCat("weight", i), {kWidth, kWidth}));
      biases.push_back(make(absl::StrCat("bias", i), {kWidth}));
    }
    unused = make("unused", {77, 77});
  }
  // The sum over rows of the loss of predicting the row's own token.
  at::Tensor Loss(const at::Tensor& tokens) {
    at::Tensor h = ops::RmsNorm(at::embedding(table, tokens), norm, 1e-6);
    for (size_t i = 0; i < weights.size(); ++i) {
      h = h + at::tanh(at::linear(h, i % 2 == 0 ? weights[i] : weights[i].t(), biases[i]));
    }
    h = h * at::cat({biases[0].narrow(0, 0, 32), biases[1].narrow(0, 32, 32)}).exp();
    return at::cross_entropy_loss(h.matmul(table.t()), tokens, {}, at::Reduction::Sum);
  }
  at::Tensor table, norm, unused;
  std::vector<at::Tensor> weights, biases;
};

struct Tokens {
  int64_t call = 0;
  int rank, size, accumulation;
  absl::StatusOr<at::Tensor> Next() {
    const int64_t share = 36 / size / accumulation;
    const int64_t place = rank * accumulation + call % accumulation;
    const int64_t step = call++ / accumulation;
    at::Tensor rows = at::empty({share}, at::kLong);
    for (int64_t i = 0; i < share; ++i) {
      rows[i] = (step * 131 + (place * share + i) * 17) % 101;
    }
    return rows;
  }
  void Restart() { call = 0; }
};

struct Way {
  int stage = 3;
  int accumulation = 1;
  std::vector<std::string> more = {};
};

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const Way& way) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      "deterministic=true",
      "optimizer.params.lr=0.01",
      "eval_batches=2",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      absl::StrCat("zero_optimization.stage=", way.stage),
      "zero_optimization.reduce_bucket_size=5000"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return testing::MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = context});
}

// Losses of five steps, an evaluation after the third, a checksum of all weights.
absl::Status Train(RankContext& context, const Way& way, std::vector<double>& numbers) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), way));
  at::manual_seed(static_cast<uint64_t>(3 + context.rank));
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  Tokens source{.rank = context.rank, .size = context.size, .accumulation = way.accumulation};
  Tokens validation = source;
  const auto loss = [&](const at::Tensor& tokens) {
    return Loss(model.Loss(tokens), tokens.size(0));
  };
  for (int i = 0; i < 5; ++i) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, loss));
    numbers.push_back(report.loss);
    numbers.push_back(report.grad_norm);
    if (i == 2) {
      DT_ASSIGN_OR_RETURN(const double evaluated, engine->Evaluate(validation, loss));
      numbers.push_back(evaluated);
    }
  }
  return engine->WithParameters([&] {
    double sum = 0;
    for (const at::Tensor& parameter : model.parameters()) {
      const at::Tensor fp32 = parameter.to(at::kFloat);       // Itself, if it is that already:
      const auto* const data = fp32.const_data_ptr<float>();  // read by no operation.
      for (int64_t i = 0; i < parameter.numel(); ++i) {
        sum += data[i] * static_cast<double>(1 + i % 7);
      }
    }
    numbers.push_back(sum);
  });
}

std::vector<double> NumbersOf(int size, const Way& way) {
  auto cluster = testing::Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    std::vector<double> numbers;
    DT_RETURN_IF_ERROR(Train(context, way, numbers));
    return context.store->Set("numbers/" + std::to_string(context.rank), DumpJson(Json(numbers)),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<double> first;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->store().Get("numbers/" + std::to_string(rank),
                                              Deadline::After(absl::Seconds(60)));
    auto numbers = ParseJson(text.value_or("[]"), "numbers")->get<std::vector<double>>();
    EXPECT_EQ(numbers.size(), 12U);
    if (rank == 0) {
      first = numbers;
    }
    EXPECT_EQ(numbers, first) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {  // Which ends the store.
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return first;
}

// What a live limit of the smallest bucket, no prefetch, and everything at once do.
const char* const kLimits[][3] = {{"zero_optimization.stage3_max_live_parameters=0",
                                   "zero_optimization.stage3_prefetch_bucket_size=0",
                                   "zero_optimization.stage3_max_reuse_distance=0"},
                                  {"zero_optimization.stage3_max_live_parameters=20000",
                                   "zero_optimization.stage3_prefetch_bucket_size=10000",
                                   "zero_optimization.stage3_max_reuse_distance=1000000000"},
                                  {"zero_optimization.stage3_max_live_parameters=1000000000",
                                   "zero_optimization.stage3_prefetch_bucket_size=50000000",
                                   "zero_optimization.stage3_max_reuse_distance=20000"}};

// Over several micro-batches stages 2 and 3 add the ranks' sums, stages 0 and 1 the micro-batches'
// first: equal to the bit are those that add in the same order.
TEST(EngineStage3Test, TrainsAsTheOtherStagesToTheBitWhateverTheLimits) {
  for (const int size : {1, 2, 3, 4}) {
    for (const int accumulation : {1, 3}) {
      const int other = accumulation == 1 ? 0 : 2;
      const std::vector<double> plain =
          NumbersOf(size, {.stage = other, .accumulation = accumulation});
      for (const auto& limits : kLimits) {
        const Way way{.accumulation = accumulation, .more = {limits, limits + 3}};
        EXPECT_EQ(NumbersOf(size, way), plain)
            << size << " ranks, " << accumulation << " micro-batches, " << limits[0];
      }
    }
  }
}

TEST(EngineStage3Test, MixedPrecisionTrainsAsAtStageTwo) {
  for (const char* const precision : {"bf16.enabled=true", "fp16.enabled=true"}) {
    const std::vector<double> plain = NumbersOf(2, {.stage = 2, .more = {precision}});
    Way way{.more = {precision}};
    EXPECT_EQ(NumbersOf(2, way), plain) << precision;
    way.more.insert(way.more.end(), kLimits[0], kLimits[0] + 3);
    EXPECT_EQ(NumbersOf(2, way), plain) << precision << " with the smallest limits";
  }
}

TEST(EngineStage3Test, ASecondShardingInSmallGroupsChangesNoNumber) {
  for (const int accumulation : {1, 3}) {
    const std::vector<double> plain = NumbersOf(4, {.stage = 2, .accumulation = accumulation});
    for (const int size : {2, 4}) {
      Way way{.accumulation = accumulation,
              .more = {absl::StrCat("zero_optimization.zero_hpz_partition_size=", size)}};
      way.more.insert(way.more.end(), kLimits[0], kLimits[0] + 3);
      EXPECT_EQ(NumbersOf(4, way), plain) << size;
    }
  }
}

TEST(EngineStage3Test, OffloadedWeightsAndStatesTrainToTheSameBits) {
  const testing::TempFolder disk;
  const std::vector<double> plain = NumbersOf(2, {.stage = 0});
  const std::vector<std::vector<std::string>> tiers = {
      {"zero_optimization.offload_param.device=cpu"},
      {"zero_optimization.offload_param.device=nvme",
       "zero_optimization.offload_param.nvme_path=" + disk.path()},
      {"zero_optimization.offload_param.device=nvme",
       "zero_optimization.offload_param.nvme_path=" + disk.path(),
       "zero_optimization.offload_optimizer.device=nvme",
       "zero_optimization.offload_optimizer.nvme_path=" + disk.path()}};
  for (const auto& tier : tiers) {
    Way way{.more = tier};
    way.more.insert(way.more.end(), kLimits[1], kLimits[1] + 3);
    EXPECT_EQ(NumbersOf(2, way), plain) << tier.front();
  }
}

// One rank alone: what an engine of stage 3 makes of a function of its model.
class EngineStage3AloneTest : public ::testing::Test {
 protected:
  void Make(int stage) {
    at::set_num_threads(1);
    Way way{.stage = stage};
    way.more.insert(way.more.end(), kLimits[0], kLimits[0] + 3);
    job_ = *MakeJob(nullptr, folder_.path(), way);
    at::manual_seed(4);
    model_ = std::make_unique<Chain>();
    engine_ = *Engine::Create(*job_, *model_);
  }
  absl::StatusOr<StepReport> Step() {
    Tokens source{.rank = 0, .size = 1, .accumulation = 1};
    return engine_->Step(source, [this](const at::Tensor& tokens) {
      return Loss(model_->Loss(tokens), tokens.size(0));
    });
  }
  testing::TempFolder folder_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Chain> model_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineStage3AloneTest, ViewsOfAnotherTypeReadTheRightElements) {
  std::vector<double> sums;
  for (const int stage : {0, 3}) {
    Make(stage);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& weight : model_->weights) {
      sums.push_back(weight.view(at::kByte).to(at::kLong).sum().item<double>());
      sums.push_back(at::view_as_complex(weight.view({-1, 2})).abs().sum().item<double>());
    }
    engine_.reset();
  }
  const size_t half = sums.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    EXPECT_EQ(sums[half + i], sums[i]) << i;
  }
}

TEST_F(EngineStage3AloneTest, AWriteThatWouldBeLostIsRefusedByName) {
  Make(3);
  ASSERT_TRUE(Step().ok());
  {
    const at::NoGradGuard no_grad;
    model_->biases[2].clamp_(-1, 1);
  }
  const auto report = Step();
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("parameter bias2 was written to"));
}

TEST_F(EngineStage3AloneTest, AnEngineThatLendsItsParametersDoesNotStep) {
  Make(3);
  absl::Status inside;
  ASSERT_TRUE(engine_->WithParameters([&] { inside = Step().status(); }).ok());
  EXPECT_THAT(std::string(inside.message()), HasSubstr("WithParameters"));
  EXPECT_TRUE(Step().ok());
}

TEST(EngineStage3Test, AnEvaluationThatFailsOnOneRankEndsTheOtherAndSaysWhy) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size, .accumulation = 1};
    return engine
        ->Evaluate(source,
                   [&](const at::Tensor& tokens) -> Loss {
                     if (context.rank == 1) {
                       throw std::runtime_error("a label is out of range");
                     }
                     return {model.Loss(tokens), tokens.size(0)};
                   })
        .status();
  });
  EXPECT_THAT(std::string(results[1].status.message()), HasSubstr("a label is out of range"));
  EXPECT_FALSE(results[0].status.ok());
  EXPECT_LT(results[0].duration, absl::Seconds(45));
}

TEST(EngineStage3Test, OverTcpToo) {
  const std::vector<double> plain = NumbersOf(2, {.stage = 0, .more = {"comm.transport=tcp"}});
  Way way{.more = {"comm.transport=tcp"}};
  way.more.insert(way.more.end(), kLimits[1], kLimits[1] + 3);
  EXPECT_EQ(NumbersOf(2, way), plain);
}

// A student learns from a teacher that learns too.
TEST(EngineStage3Test, TwoEnginesInOneProgramTrainSideBySide) {
  const auto numbers_at = [](int stage) {
    auto cluster = testing::Cluster::Start({.size = 2}, [stage](RankContext& context) {
      at::set_num_threads(1);
      const testing::TempFolder folder;
      const auto train = [&]() -> absl::Status {
        DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), {.stage = stage}));
        at::manual_seed(9);
        Chain teacher;
        Chain student;
        DT_ASSIGN_OR_RETURN(auto first, Engine::Create(*job, teacher));
        DT_ASSIGN_OR_RETURN(auto second, Engine::Create(*job, student));
        Tokens a{.rank = context.rank, .size = context.size, .accumulation = 1};
        Tokens b = a;
        std::vector<double> numbers;
        for (int i = 0; i < 3; ++i) {
          DT_ASSIGN_OR_RETURN(const auto taught, first->Step(a, [&](const at::Tensor& tokens) {
            return Loss(teacher.Loss(tokens), tokens.size(0));
          }));
          DT_ASSIGN_OR_RETURN(const auto learnt, second->Step(b, [&](const at::Tensor& tokens) {
            const at::Tensor goal = teacher.weights[0].detach();
            return Loss(student.Loss(tokens) + (student.weights[0] - goal).square().sum(),
                        tokens.size(0));
          }));
          numbers.insert(numbers.end(), {taught.loss, learnt.loss});
        }
        return context.store->Set("numbers/" + std::to_string(context.rank),
                                  DumpJson(Json(numbers)), Deadline::After(absl::Seconds(10)));
      };
      return train();
    });
    const auto text = (*cluster)->store().Get("numbers/0", Deadline::After(absl::Seconds(60)));
    for (const auto& result : (*cluster)->Join()) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
    return text.value_or("");
  };
  const std::string plain = numbers_at(0);
  EXPECT_THAT(plain, HasSubstr(","));
  EXPECT_EQ(numbers_at(3), plain);
}

using EngineStage3DeathTest = ::testing::Test;

TEST(EngineStage3DeathTest, CodeThatIsNoOperationIsToldWhichParameterItRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [] {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    auto job = MakeJob(nullptr, folder.path(), {});
    Chain model;
    auto engine = Engine::Create(**job, model);
    const volatile float* const data = model.weights[3].const_data_ptr<float>();
    static_cast<void>(data[5]);
  };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(64), "parameter weight3 was read by code");
}

TEST(EngineStage3Test, RanksThatReadDifferentWeightsEndWithAnErrorThatNamesThem) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size, .accumulation = 1};
    return engine
        ->Step(source,
               [&](const at::Tensor& tokens) {
                 const at::Tensor first = context.rank == 0 ? model.unused : model.table;
                 return Loss(model.Loss(tokens) + first.sum(), tokens.size(0));
               })
        .status();
  });
  for (const auto& result : results) {
    EXPECT_FALSE(result.status.ok());
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("weights of bucket"));
    EXPECT_LT(result.duration, absl::Seconds(45));
  }
}

TEST(EngineStage3Test, ARankKeepsItsShareAndNoMore) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), {}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    const EngineState& state = engine->state();
    const int64_t total = state.flat->layout().total_elements();
    if (state.shard_values.numel() > total / 2 + 4096 ||
        state.slots[0].tensor.numel() > total / 2 + 4096 || state.flat->gradients().defined() ||
        state.flat->value_memory() != nullptr) {
      return absl::InternalError("more than a share");
    }
    return absl::OkStatus();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain
