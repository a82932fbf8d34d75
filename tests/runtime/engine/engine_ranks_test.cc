// Several ranks, each a process: same model, same sums, same end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::engine_ranks_test {
namespace {

using ::testing::HasSubstr;
using testing::RankContext;

class Net : public torch::nn::Module {
 public:
  explicit Net(int64_t width = 9, bool second_on = true) : second(second_on) {
    a = register_parameter("a", at::randn({width, 9}) * 0.3);
    b = register_parameter("b", at::randn({9}) * 0.3);
  }
  // Mean over rows of a small non-linear function.
  at::Tensor Loss(const at::Tensor& x) {
    const at::Tensor h = at::tanh(x.to(a.scalar_type()).matmul(a));
    return (second ? (h * b).square() : h.square()).sum(at::kFloat);
  }
  at::Tensor a, b;
  bool second;
};

// Row i of step s is the same number on every world size.
at::Tensor Rows(int64_t step, int64_t begin, int64_t end) {
  at::Tensor rows = at::empty({end - begin, 9});
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < 9; ++j) {
      rows[i - begin][j] = std::sin(static_cast<double>(step * 131 + i * 17 + j));
    }
  }
  return rows;
}

struct Way {
  int stage = 0;
  int accumulation = 1;
  bool alternating = false;            // Parameter b is used in every second micro-batch alone.
  std::vector<std::string> more = {};  // Overrides.
};

std::vector<std::string> Overrides(const Way& way) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1",
      absl::StrCat("gradient_accumulation_steps=", way.accumulation),
      absl::StrCat("zero_optimization.stage=", way.stage),
      "zero_optimization.reduce_bucket_size=40"};
  overrides.insert(overrides.end(), way.more.begin(), way.more.end());
  return overrides;
}

// Checks the stage's promises about memory.
absl::Status CheckShares(Engine& engine, const Way& way, int size) {
  EngineState& state = engine.state();
  const int64_t total = state.flat->layout().total_elements();
  const int64_t align = way.stage < 3 ? plan::ParamLayout::kAlignElements : kernels::kNormBlock;
  const int64_t largest = way.stage == 0 ? total : total / size + align;
  for (const StateSlot& slot : state.optimizer.slots) {
    if (slot.tensor.numel() > largest) {
      return absl::InternalError(absl::StrCat(slot.name, " of ", slot.tensor.numel(), " elements"));
    }
  }
  return state.flat->gradients().defined() == (way.stage < 2)
             ? absl::OkStatus()
             : absl::InternalError("a whole gradient buffer at stage 2, or none before");
}

// Six steps on 36 rows a step, split evenly over ranks and micro-batches; the losses, then a
// checksum of weights.
absl::Status Train(RankContext& context, const Way& way, const std::string& group,
                   std::vector<double>& losses) {
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob({.run_dir = folder.path(),
                                                      .overrides = Overrides(way),
                                                      .rank = &context,
                                                      .group = group}));
  at::manual_seed(static_cast<uint64_t>(7 + context.rank));  // Weights must come from rank 0.
  Net net;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  DT_RETURN_IF_ERROR(CheckShares(*engine, way, context.size));
  struct Source {
    int64_t call = 0;
    int rank, size, accumulation;
    absl::StatusOr<at::Tensor> Next() {
      const int64_t share = 36 / size / accumulation;
      const int64_t place = rank * accumulation + call % accumulation;
      return Rows(call++ / accumulation, place * share, (place + 1) * share);
    }
  } source{.rank = context.rank, .size = context.size, .accumulation = way.accumulation};
  for (int i = 0; i < 6; ++i) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, [&](const at::Tensor& x) {
      net.second = !way.alternating || source.call % 2 == 0;
      return Loss(net.Loss(x), x.size(0));
    }));
    losses.push_back(report.loss);
  }
  losses.push_back(net.a.abs().sum(at::kFloat).item<double>());
  return absl::OkStatus();
}

// The losses of each way. The same ranks train one after the other, because starting them for each
// would take most of the time. Each rank puts its losses into the store for the test to read.
std::vector<std::vector<double>> LossesOf(int size, const std::vector<Way>& ways) {
  constexpr absl::Duration kBound = absl::Seconds(120);
  auto cluster = testing::Cluster::Start(
      {.size = size, .time_bound = kBound}, [&](RankContext& context) -> absl::Status {
        at::set_num_threads(1);
        std::vector<std::vector<double>> losses(ways.size());
        for (size_t i = 0; i < ways.size(); ++i) {
          DT_RETURN_IF_ERROR(Annotate(
              Train(context, ways[i], absl::StrCat("way-", i), losses[i]),
              absl::StrCat("stage ", ways[i].stage, ", ", ways[i].accumulation, " micro-batches")));
        }
        return context.store->Set("losses/" + std::to_string(context.rank), DumpJson(Json(losses)),
                                  Deadline::After(absl::Seconds(10)));
      });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::vector<double>> first;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->Result("losses/" + std::to_string(rank));
    EXPECT_TRUE(text.ok()) << text.status();
    auto losses = ParseJson(text.value_or("[]"), "losses")->get<std::vector<std::vector<double>>>();
    if (rank == 0) {
      first = losses;
    }
    EXPECT_EQ(losses, first) << "every rank has the same losses and weights, bit for bit";
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  first.resize(ways.size());  // Ways that could not be trained are missing.
  return first;
}

std::vector<double> LossesOf(int size) { return LossesOf(size, {Way{}}).front(); }

// fp32 sums in another order: a few ulp a step.
void ExpectNear(const std::vector<double>& losses, const std::vector<double>& expected,
                const std::string& what) {
  ASSERT_EQ(losses.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 2e-5 * std::abs(expected[i])) << what << ", item " << i;
  }
}

TEST(EngineRanksTest, AnyNumberOfRanksTrainsAtEveryStageAsOneDoesAtStageZero) {
  std::vector<Way> ways = {{}};
  for (const int stage : {1, 2, 3}) {
    for (const int accumulation : {1, 3}) {
      ways.push_back({.stage = stage, .accumulation = accumulation});
    }
  }
  std::vector<double> one;
  for (const int size : {1, 2, 3, 4}) {
    const auto losses = LossesOf(size, ways);
    if (size == 1) {
      one = losses[0];
      ASSERT_EQ(one.size(), 7U);
      EXPECT_NE(one[0], one[5]);
    }
    for (size_t i = 0; i < ways.size(); ++i) {
      ExpectNear(losses[i], one,
                 absl::StrCat("stage ", ways[i].stage, ", ", size, " ranks, ", ways[i].accumulation,
                              " micro-batches"));
    }
  }
}

TEST(EngineRanksTest, AParameterUsedInSomeMicroBatchesOnlyCountsAllTheSame) {
  std::vector<Way> ways;
  for (const int stage : {0, 1, 2, 3}) {
    ways.push_back({.stage = stage, .accumulation = 3, .alternating = true});
  }
  const auto losses = LossesOf(2, ways);
  ASSERT_EQ(losses[0].size(), 7U);
  for (const int stage : {1, 2, 3}) {
    ExpectNear(losses[static_cast<size_t>(stage)], losses[0], absl::StrCat("stage ", stage));
  }
}

TEST(EngineRanksTest, MixedPrecisionTrainsTheSameAtEveryStage) {
  const std::vector<double> fp32 = LossesOf(1);
  ASSERT_EQ(fp32.size(), 7U);
  std::vector<Way> ways;
  for (const char* const precision : {"bf16.enabled=true", "fp16.enabled=true"}) {
    for (const int stage : {0, 1, 2, 3}) {
      // The norm alone sums in another order.
      ways.push_back({.stage = stage, .more = {precision, "gradient_clipping=0"}});
    }
  }
  for (const int size : {1, 2, 3}) {
    const auto losses = LossesOf(size, ways);
    for (size_t i = 0; i < ways.size(); ++i) {
      const std::vector<double>& plain = losses[i - i % 4];
      ASSERT_EQ(plain.size(), fp32.size());
      for (size_t item = 0; item < fp32.size() && i % 4 == 0; ++item) {
        EXPECT_NEAR(plain[item], fp32[item], 0.02 * std::abs(fp32[item])) << "bf16 has 8 bits";
      }
      EXPECT_NE(plain, fp32);
      EXPECT_EQ(losses[i], plain) << ways[i].more[0] << ", stage " << ways[i].stage << ", " << size
                                  << " ranks";
    }
  }
}

TEST(EngineRanksTest, AModelThatDiffersBetweenRanksIsNamed) {
  const auto results = testing::RunRanks({.size = 3}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job,
                        testing::MakeTestJob({.run_dir = folder.path(),
                                              .overrides = {"train_micro_batch_size_per_gpu=1"},
                                              .rank = &context}));
    Net net(context.rank == 2 ? 10 : 9);
    return Engine::Create(*job, net).status();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                ::testing::AllOf(HasSubstr("[9, 9]"), HasSubstr("[10, 9]"), HasSubstr("rank 2")));
  }
}

// ZeRO stage.
class EngineStagesTest : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Stages, EngineStagesTest, ::testing::Values(0, 1, 2, 3));

TEST_P(EngineStagesTest, AParameterUsedOnSomeRanksOnlyIsReducedAllTheSame) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job,
                        testing::MakeTestJob({.run_dir = folder.path(),
                                              .overrides = Overrides({.stage = GetParam()}),
                                              .rank = &context}));
    Net net(9, /*second_on=*/context.rank == 0);
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
    struct Source {
      absl::StatusOr<at::Tensor> Next() { return at::ones({1, 9}); }
    } source;
    const at::Tensor before = net.b.detach().clone();
    for (int i = 0; i < 3; ++i) {
      DT_RETURN_IF_ERROR(
          engine->Step(source, [&](const at::Tensor& x) { return net.Loss(x); }).status());
    }
    return net.b.equal(before) ? absl::InternalError("rank 0's gradient of b was lost")
                               : absl::OkStatus();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST_P(EngineStagesTest, AFailureOnOneRankEndsTheOthersInsteadOfHanging) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job,
                        testing::MakeTestJob({.run_dir = folder.path(),
                                              .overrides = Overrides({.stage = GetParam()}),
                                              .rank = &context}));
    Net net;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
    struct Source {
      int rank;
      int64_t calls = 0;
      absl::StatusOr<at::Tensor> Next() {
        if (rank == 1 && ++calls == 3) {
          return absl::InvalidArgumentError("shard 7 is truncated at byte 4096");
        }
        return at::ones({1, 9});
      }
    } source{.rank = context.rank};
    for (int i = 0; i < 5; ++i) {
      DT_RETURN_IF_ERROR(
          engine->Step(source, [&](const at::Tensor& x) { return net.Loss(x); }).status());
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(results[1].status.message()), HasSubstr("shard 7"));
  EXPECT_FALSE(results[0].status.ok());
  EXPECT_LT(results[0].duration, absl::Seconds(45)) << "long before the collective's deadline";
}

}  // namespace
}  // namespace dtrain::engine_ranks_test
