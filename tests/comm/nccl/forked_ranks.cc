#include "tests/comm/nccl/forked_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>

#include "tests/testing/cluster.h"

namespace dtrain::comm {

FakeRank::FakeRank(FakeFabric* fabric, Store* the_store, int the_rank, int the_size,
                   FakeNcclFaults faults)
    : rank(the_rank), size(the_size), store(the_store), nccl(fabric, &cuda, faults) {
  options.group.rank = rank;
  options.group.size = size;
  options.group.timeout = absl::Seconds(50);
  options.group.connect_timeout = absl::Seconds(50);
}

absl::StatusOr<std::unique_ptr<NcclGroup>> FakeRank::TryMakeGroup() {
  NcclSeams seams;
  seams.nccl = &nccl;
  seams.cuda = &cuda;
  seams.kernels = MakeFakeKernels(&cuda);
  return NcclGroup::Create(seams, store, options);
}

std::unique_ptr<NcclGroup> FakeRank::MakeGroup() {
  auto group = TryMakeGroup();
  if (!group.ok()) {
    ADD_FAILURE() << group.status().ToString();
    return nullptr;
  }
  return *std::move(group);
}

void* FakeRank::Allocate(size_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(cuda.MallocDevice(&data, bytes), CudaResult::kSuccess);
  allocated.push_back(data);
  return data;
}

void FakeRank::ExpectClean() {
  EXPECT_THAT(nccl.violations(), ::testing::IsEmpty());
  EXPECT_THAT(cuda.violations(), ::testing::IsEmpty());
  EXPECT_EQ(nccl.live_comms(), 0);
  EXPECT_EQ(cuda.live_handles(), static_cast<int>(allocated.size()));
}

void RunRanks(int size, const RankBody& body, const std::function<FakeNcclFaults(int)>& faults,
              Victim victim) {
  FakeFabric fabric;
  const auto results =
      testing::RunRanks({.size = size}, [&](testing::RankContext& context) -> absl::Status {
        {
          FakeRank self(&fabric, context.store, context.rank, size,
                        faults ? faults(context.rank) : FakeNcclFaults{});
          body(self);
        }
        // The process ends without flushing stdout, to which failures are printed.
        fflush(nullptr);
        return ::testing::Test::HasFailure() ? absl::InternalError("failed; printed above")
                                             : absl::OkStatus();
      });
  for (int rank = 0; rank < size; ++rank) {
    const testing::RankResult& result = results.at(static_cast<size_t>(rank));
    const bool dies = rank == victim.rank;
    EXPECT_EQ(result.signal, dies && victim.exit_code == 0 ? SIGKILL : 0) << "rank " << rank;
    EXPECT_TRUE(result.status.ok() || dies) << "rank " << rank << ": " << result.status;
    if (dies) {
      EXPECT_EQ(result.exit_code, victim.exit_code) << "rank " << rank << ": " << result.status;
    }
  }
}

}  // namespace dtrain::comm
