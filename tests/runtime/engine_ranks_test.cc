// Several ranks, each a process: same model, same sums, same end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/engine/engine_state.h"
#include "tests/runtime/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain {
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
    const at::Tensor h = at::tanh(x.matmul(a));
    return (second ? (h * b).square() : h.square()).sum();
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

// Six steps on 12 rows a step, split evenly over the ranks; the losses, then a checksum of weights.
absl::Status Train(RankContext& context, std::vector<double>& losses) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(
      auto job, testing::MakeTestJob({.run_dir = folder.path(),
                                      .overrides = {"train_micro_batch_size_per_gpu=1",
                                                    "zero_optimization.reduce_bucket_size=40"},
                                      .rank = &context}));
  at::manual_seed(static_cast<uint64_t>(7 + context.rank));  // Weights must come from rank 0.
  Net net;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  struct Source {
    int64_t step = 0;
    int rank, size;
    absl::StatusOr<at::Tensor> Next() {
      const int64_t share = 12 / size;
      return Rows(step++, rank * share, (rank + 1) * share);
    }
  } source{.rank = context.rank, .size = context.size};
  for (int i = 0; i < 6; ++i) {
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, [&](const at::Tensor& x) {
      return Loss(net.Loss(x), x.size(0));
    }));
    losses.push_back(report.loss);
  }
  losses.push_back(net.a.abs().sum().item<double>());
  return absl::OkStatus();
}

// Rank 0 puts its losses into the store for the test to read.
std::vector<double> LossesOf(int size) {
  auto cluster = testing::Cluster::Start({.size = size}, [](RankContext& context) -> absl::Status {
    std::vector<double> losses;
    DT_RETURN_IF_ERROR(Train(context, losses));
    const Json json = losses;
    return context.store->Set("losses/" + std::to_string(context.rank), DumpJson(json),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->store().Get("losses/" + std::to_string(rank),
                                              Deadline::After(absl::Seconds(60)));
    EXPECT_TRUE(text.ok()) << text.status();
    all.push_back(ParseJson(text.value_or("[]"), "losses")->get<std::vector<double>>());
    EXPECT_EQ(all.back(), all.front()) << "every rank has the same losses and weights, bit for bit";
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return all.front();
}

TEST(EngineRanksTest, TwoThreeAndFourRanksTrainAsOneDoes) {
  const std::vector<double> one = LossesOf(1);
  ASSERT_EQ(one.size(), 7U);
  EXPECT_NE(one[0], one[5]);
  for (const int size : {2, 3, 4}) {
    const std::vector<double> many = LossesOf(size);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      // fp32 sums in another order: a few ulp a step.
      EXPECT_NEAR(many[i], one[i], 2e-5 * std::abs(one[i])) << size << " ranks, item " << i;
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
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("a"));
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("rank 2"));
  }
}

TEST(EngineRanksTest, AParameterUsedOnSomeRanksOnlyIsReducedAllTheSame) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(
        auto job, testing::MakeTestJob(
                      {.run_dir = folder.path(),
                       .overrides = {"train_micro_batch_size_per_gpu=1", "gradient_clipping=0"},
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

TEST(EngineRanksTest, AFailureOnOneRankEndsTheOthersInsteadOfHanging) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job,
                        testing::MakeTestJob({.run_dir = folder.path(),
                                              .overrides = {"train_micro_batch_size_per_gpu=1"},
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
}  // namespace dtrain
