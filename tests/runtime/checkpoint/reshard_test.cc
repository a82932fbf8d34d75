// A checkpoint of one number of ranks, stage and place of states, read by another: every weight and
// every optimizer state has the same bits, and the schedule goes on where it was. The model has
// what public trainers have lost on this way: a tied weight, parameters with fewer elements than
// there are ranks, a last shard that is padded, and a frozen weight, of which nothing is kept but
// itself.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/checkpoint/state_digest.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::reshard_test {
namespace {

using testing::RankContext;

class Odd : public torch::nn::Module {
 public:
  Odd() {
    table = register_parameter("table", at::randn({7, 5}) * 0.3);
    one = register_parameter("one", at::ones({1}));
    two = register_parameter("two", at::full({2}, 0.5));
    frozen = register_parameter("frozen", at::randn({5, 5}), /*requires_grad=*/false);
    rest = register_parameter("rest", at::randn({13, 3}));
  }
  // The table is read at both ends.
  at::Tensor Loss(const at::Tensor& tokens) {
    const at::Tensor target = tokens.remainder(7);
    const at::Tensor h = at::embedding(table, target).matmul(frozen) * one + two.sum();
    return at::cross_entropy_loss((h * rest.tanh().mean()).matmul(table.t()), target, {},
                                  at::Reduction::Sum);
  }
  at::Tensor table, one, two, frozen, rest;
};

constexpr char kFirstGroup[] = R"({"params":"table","lr":0.02})";
constexpr char kSecondGroup[] = R"({"params":"rest","weight_decay":0.1})";

struct Side {
  int ranks = 1;
  int stage = 0;
  std::vector<std::string> more = {};
  bool swaps_groups = false;  // The parameter groups come in the other order.
};

struct Reshard {
  const char* name;
  Side from;
  Side to;
};

// A rank has this behind step 3 and in step 4.
absl::StatusOr<Json> TrainRank(RankContext& context, const std::string& folder, const Side& side,
                               bool resumes) {
  at::set_num_threads(1);
  std::vector<std::string> more = {
      "checkpoint.interval=3", "checkpoint.async=false", "train_steps=20",
      R"(scheduler={"type":"WarmupLR","params":{"warmup_num_steps":9}})",
      absl::StrCat("optimizer.param_groups=[", side.swaps_groups ? kSecondGroup : kFirstGroup, ",",
                   side.swaps_groups ? kFirstGroup : kSecondGroup, "]")};
  more.insert(more.end(), side.more.begin(), side.more.end());
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeChainJob(side.ranks == 1 ? nullptr : &context, folder,
                                                      {.stage = side.stage, .more = more},
                                                      resumes ? "resumed" : "straight"));
  at::manual_seed(resumes ? 99 : 5);  // All must come from the checkpoint.
  Odd model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  if (resumes) {
    DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  }
  Json found = {{"resumed", engine->step()}};
  testing::Tokens source{.call = engine->step(), .rank = context.rank, .size = context.size};
  while (engine->step() < 4) {
    if (engine->step() == 3) {
      DT_ASSIGN_OR_RETURN(found["weights"], testing::WeightsDigest(*engine, model));
      found["states"] = testing::StatesDigest(engine->state(), context.rank);
      found["updates"] = engine->state().progress.updates;
    }
    DT_ASSIGN_OR_RETURN(const auto report, TakeStep(*engine, model, source));
    found["loss"] = double{report.loss};
    found["rate"] = report.learning_rate;
    if (!resumes && engine->step() == 3) {
      DT_RETURN_IF_ERROR(checkpoints->MaybeSave(3));
    }
  }
  return found;
}

// The ranks' findings as one: their states added, all else as rank 0 has it.
Json Train(const std::string& folder, const Side& side, bool resumes) {
  const auto path = [&](int rank) { return absl::StrCat(folder, "/found-", rank, ".json"); };
  for (const auto& result :
       testing::RunRanks({.size = side.ranks}, [&](RankContext& context) -> absl::Status {
         DT_ASSIGN_OR_RETURN(const Json found, TrainRank(context, folder + "/run", side, resumes));
         return WriteFileAtomic(path(context.rank), DumpJson(found));
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  Json all;
  for (int rank = 0; rank < side.ranks; ++rank) {
    const auto text = ReadFile(path(rank), 1 << 20);
    const Json found = ParseJson(text.value_or("{}"), "found").value_or(Json::object());
    if (rank == 0) {
      all = found;
      continue;
    }
    EXPECT_EQ(found.value("weights", Json()), all["weights"]) << "rank " << rank;
    all["states"] = all.value("states", uint64_t{0}) + found.value("states", uint64_t{0});
  }
  return all;
}

class ReshardTest : public ::testing::TestWithParam<Reshard> {};

INSTANTIATE_TEST_SUITE_P(
    Ways, ReshardTest,
    ::testing::Values(
        Reshard{"four_ranks_to_three_with_offload",
                {4, 1},
                {3, 2, {R"(zero_optimization.offload_optimizer={"device":"cpu"})"}}},
        Reshard{"three_ranks_at_stage_3_to_four", {3, 3}, {4, 1, {}, /*swaps_groups=*/true}},
        Reshard{"two_ranks_in_bf16_to_three_at_stage_3",
                {2, 0, {"bf16.enabled=true"}},
                {3, 3, {"bf16.enabled=true"}}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(ReshardTest, EveryWeightAndStateHasItsBitsAndTheScheduleItsPosition) {
  const auto& [name, from, to] = GetParam();
  const testing::TempFolder folder;
  const Json straight = Train(folder.path(), from, /*resumes=*/false);
  const Json resumed = Train(folder.path(), to, /*resumes=*/true);
  ASSERT_EQ(resumed.value("resumed", -1), 3) << resumed;
  for (const char* const what : {"weights", "states", "updates", "rate"}) {
    ASSERT_TRUE(straight.contains(what) && resumed.contains(what)) << what;
    EXPECT_EQ(resumed[what], straight[what]) << what;
  }
  // The next step sees the same samples; ranks sum them in another order.
  const double loss = straight["loss"];
  EXPECT_NEAR(resumed["loss"].get<double>(), loss, 0.02 * std::abs(loss));
}

}  // namespace
}  // namespace dtrain::reshard_test
