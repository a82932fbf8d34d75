#include "tests/comm/nccl/forked_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

namespace dtrain::comm {

FakeRank::FakeRank(FakeFabric* fabric, FakeStore* the_store, int the_rank, int the_size,
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
  EXPECT_THAT(nccl.violations(), testing::IsEmpty());
  EXPECT_THAT(cuda.violations(), testing::IsEmpty());
  EXPECT_EQ(nccl.live_comms(), 0);
  EXPECT_EQ(cuda.live_handles(), static_cast<int>(allocated.size()));
}

void RunRanks(int size, const RankBody& body, const std::function<FakeNcclFaults(int)>& faults) {
  FakeFabric fabric;
  FakeStore store;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      SetLogRank(rank);
      {
        FakeRank self(&fabric, &store, rank, size, faults ? faults(rank) : FakeNcclFaults{});
        body(self);
      }
      // A leak checker still runs; the parent's test printers do not.
      fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << rank << " ended with wait status " << status;
  }
}

}  // namespace dtrain::comm
