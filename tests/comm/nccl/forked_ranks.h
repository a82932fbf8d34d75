// Ranks as forked processes over one fake fabric, for the tests of the NCCL group.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/fake/fake_fabric.h"
#include "comm/nccl/fake/fake_kernels.h"
#include "comm/nccl/fake/fake_nccl.h"
#include "comm/nccl/nccl_group.h"
#include "comm/net/store.h"

namespace dtrain::comm {

// The parts that one rank's process has. Members are destroyed in reverse order, so that the fakes,
// which are destroyed last, end the operations that hang.
struct FakeRank {
  FakeRank(FakeFabric* fabric, Store* store, int rank, int size, FakeNcclFaults faults);

  // The group of all ranks; fails the test when it cannot be made.
  std::unique_ptr<NcclGroup> MakeGroup();
  absl::StatusOr<std::unique_ptr<NcclGroup>> TryMakeGroup();
  // Device memory of `bytes`, which is freed with the fake.
  void* Allocate(size_t bytes);
  // Fails the test when NCCL or CUDA was used wrongly or a handle is left.
  void ExpectClean();

  int rank;
  int size;
  Store* store;
  FakeCuda cuda{2};
  FakeNccl nccl;
  NcclGroupOptions options;  // Timeouts are long; tests of timeouts shorten them.
  std::vector<void*> allocated;
};

using RankBody = std::function<void(FakeRank&)>;

// A rank that does not come to its end.
struct Victim {
  int rank = -1;      // -1: there is none.
  int exit_code = 0;  // The rank ends with this code; 0: it must die of SIGKILL.
};

// Runs `body` in `size` forked processes, each with its own fakes over one fabric, and fails the
// test for each that has a failure, crashes (but for `victim`), or is not done after a minute (it
// is killed).
void RunRanks(int size, const RankBody& body,
              const std::function<FakeNcclFaults(int rank)>& faults = {}, Victim victim = {});

}  // namespace dtrain::comm
