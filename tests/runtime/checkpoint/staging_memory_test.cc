// checkpoint.staging_memory: what a save beside training copies passes through it, at every stage
// of ZeRO, and a budget that does not serve is refused when the checkpoints are opened.
#include "runtime/checkpoint/staging_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/commit/staged_source.h"
#include "dtrain/engine.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/tracked_tensors.h"
#include "runtime/model/cpu_rng.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::staging_memory_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RankContext;

// A chain with a buffer, which a forward may change, and a frozen weight, which a program may.
class Model : public testing::Chain {
 public:
  Model() {
    register_buffer("seen", at::zeros({3000}));
    register_parameter("frozen", at::ones({50, 50}), /*requires_grad=*/false);
  }
};

constexpr int64_t kAverage = 5000;  // Elements of a tracked tensor.

// The bytes that a staged snapshot of one rank has copied by itself, if it leaves the rest to the
// pool.
absl::StatusOr<uint64_t> CopiedBeside(RankContext& context, const std::string& folder,
                                      std::vector<std::string> overrides) {
  at::set_num_threads(1);
  overrides.emplace_back("train_batch_size=36");
  overrides.emplace_back("zero_optimization.stage3_param_persistence_threshold=0");
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob(
                                    {.run_dir = folder, .overrides = overrides, .rank = &context}));
  Model model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  const RankPlace place{.rank = context.rank, .world_size = context.size};
  EngineSnapshots snapshots(engine->state(), place, "");
  EngineSnapshot snapshot;
  snapshot.is_staged = true;
  DT_RETURN_IF_ERROR(snapshots.AddTo(snapshot));
  const std::vector<NamedTensor> tracked = {{"average", at::zeros({kAverage})}};
  DT_RETURN_IF_ERROR(AddTrackedTensors(tracked, place, snapshot));
  uint64_t beside = 0;
  uint64_t staged = 0;
  for (const auto* const tensors : {&snapshot.source.model, &snapshot.source.state}) {
    for (const checkpoint::NamedTensor& tensor : *tensors) {
      const bool is_copy = tensor.stay == checkpoint::BytesStay::kWithSnapshot;
      (is_copy ? beside : staged) += tensor.bytes.size();
    }
  }
  if (checkpoint::StagedBytes(snapshot.source) < staged) {
    return absl::InternalError("the pool does not count all that passes through it");
  }
  // All states and weights are stored, and this rank has about its share of them.
  const uint64_t share = StoredBytes(engine->state()) / static_cast<uint64_t>(context.size);
  if (staged < share / 2) {
    return absl::InternalError(absl::StrCat("staged: ", staged, " bytes of ", share));
  }
  return beside;
}

TEST(StagedSnapshotTest, CopiesRandomStatesAloneBesideTheBudget) {
  const std::vector<std::vector<std::string>> ways = {
      {},
      {"zero_optimization.stage=1", "bf16.enabled=true"},
      {"zero_optimization.stage=2", R"(zero_optimization.offload_optimizer={"device":"cpu"})"},
      {"zero_optimization.stage=3"},
      {"zero_optimization.stage=3", "module_buffers=local", "bf16.enabled=true"},
      {"zero_optimization.stage=3", R"(zero_optimization.offload_param={"device":"cpu"})"}};
  for (const std::vector<std::string>& way : ways) {
    SCOPED_TRACE(way.empty() ? "stage 0" : way.back());
    const testing::TempFolder folder;
    for (const auto& result :
         testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
           DT_ASSIGN_OR_RETURN(const uint64_t beside, CopiedBeside(context, folder.path(), way));
           return beside > kCpuRngBytes
                      ? absl::InternalError(absl::StrCat(beside, " bytes are copied beside it"))
                      : absl::OkStatus();
         })) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

TEST(StagingRoomTest, LessThanTheSmallestPartOfASnapshotIsRefused) {
  StagingRoom room{.configured_bytes = 4'194'303, .ranks = 2, .available_bytes = 1'000'000'000};
  EXPECT_THAT(std::string(CheckStagingRoom(room).message()),
              AllOf(HasSubstr("checkpoint.staging_memory is 4194303 bytes"),
                    HasSubstr("needs at least 4194304 bytes on each rank")));
  room.configured_bytes = 4'194'304;
  EXPECT_TRUE(CheckStagingRoom(room).ok());
  room.on_gpu = true;  // One block more, for what the GPU's memory is read through.
  EXPECT_THAT(std::string(CheckStagingRoom(room).message()),
              HasSubstr("needs at least 8388608 bytes on each rank"));
  room.configured_bytes = 8'388'608;
  EXPECT_TRUE(CheckStagingRoom(room).ok());
}

TEST(StagingRoomTest, WithoutMemoryForTheSmallestPartNoBudgetServes) {
  StagingRoom room{.ranks = 2, .available_bytes = 8'388'607};
  const absl::Status refused = CheckStagingRoom(room);
  EXPECT_EQ(ExitCodeFor(refused), kExitUsage);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("needs at least 4194304 bytes on each of 2 ranks"),
                    HasSubstr("together 8.4 MB; 8.4 MB are available"),
                    HasSubstr("checkpoint.async to false")));
  room.available_bytes = 8'388'608;
  EXPECT_TRUE(CheckStagingRoom(room).ok());
}

TEST(StagingRoomTest, WhatIsConfiguredMustBeThereBesideReplicas) {
  StagingRoom room{.configured_bytes = 50'000'000,
                   .ranks = 4,
                   .available_bytes = 199'000'000,
                   .replica_bytes = 300'000'000};
  EXPECT_THAT(std::string(CheckStagingRoom(room).message()),
              AllOf(HasSubstr("50000000 bytes on each of 4 ranks of this node, together 200 MB"),
                    HasSubstr("199 MB are available beside checkpoint.replica_memory, 300 MB")));
  room.available_bytes = 200'000'000;
  EXPECT_TRUE(CheckStagingRoom(room).ok());
}

}  // namespace
}  // namespace dtrain::staging_memory_test
