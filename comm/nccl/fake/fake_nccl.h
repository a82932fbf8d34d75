// A NcclApi that moves real bytes between forked processes and is stricter than NCCL about order.
//
// Collectives run on FakeCuda's streams. Wrong use (a destroyed communicator, a second thread at
// the same time, a call before initialisation or the last call ended, memory that is not the
// device's, a stream of another device, a name that has gone, destruction with registrations left)
// gives kInvalidUsage and a line in violations(). FakeNcclFaults injects faults. Thread-safe in its
// own bookkeeping. REQUIRES: fabric and cuda outlive it; made after fork.
//
// The fake does these things as NCCL 2.28.9 does, in whose src/ the functions are:
// - CommAbort waits for the work on the streams (commDestroySync in init.cc) and frees
// registrations
//   (ncclRegCleanup in register/register.cc, which init.cc calls to free a communicator).
// - The last CommDeregister of a handle waits for other processes (regCleanup in
//   register/register.cc), and ranges within the same pages share a registration (ncclRegister
//   there).
// - CommSplit stores its result when its job ends (ncclCommInitRankFunc in init.cc), and the new
//   communicator keeps the pointer to its parent's name (copyCommConfig there).
// - A group of calls runs its collectives first and then its sends and receives together
//   (ncclLaunchPrepare in enqueue.cc).
// - A group of calls on non-blocking communicators has one thread (ncclGroupEndInternal in
//   group.cc).
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/fake/fake_fabric.h"
#include "comm/nccl/fake/fake_launches.h"
#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

struct FakeNcclFaults {
  bool init_hangs = false;        // An initialisation stays in progress for ever.
  bool no_scalable_init = false;  // There is no CommInitRankScalable, as in NCCL before 2.23.
  int hanging_operation = -1;     // The operation with this index, from 0, never ends.
  int async_error_after = -1;     // After so many operations every communicator is broken.
  NcclResult async_error = NcclResult::kRemoteError;
  // CommGetAsyncError gives kInProgress so often after each call, as that of a busy NCCL does.
  int polls_in_progress = 1;
  bool split_hangs = false;       // The job of CommSplit ends only when its parent is aborted.
  bool abort_hangs = false;       // CommAbort never returns.
  bool deregister_hangs = false;  // CommDeregister waits for a peer that is stopped.
  // How many kernels of collectives a device runs at once (fake_launches.h).
  int kernels_at_once = std::numeric_limits<int>::max();
};

class FakeNcclComm;

class FakeNccl final : public NcclApi {
 public:
  FakeNccl(FakeFabric* fabric, FakeCuda* cuda, FakeNcclFaults faults = {});
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  // Ends the operations that hang.
  ~FakeNccl() override;

  std::string Description() override;
  std::string ErrorString(NcclResult result) override;
  std::string LastError(NcclComm* comm) override;
  NcclResult GetVersion(int* version) override;
  NcclResult GetUniqueId(NcclUniqueId* id) override;
  NcclResult CommInitRankConfig(NcclComm** comm, int ranks, const NcclUniqueId& id, int rank,
                                const char* name) override;
  bool HasScalableInit() override { return !faults_.no_scalable_init; }
  NcclResult CommInitRankScalable(NcclComm** comm, int ranks, absl::Span<const NcclUniqueId> ids,
                                  int rank, const char* name) override;
  NcclResult CommGetAsyncError(NcclComm* comm, NcclResult* error) override;
  NcclResult CommFinalize(NcclComm* comm) override;
  NcclResult CommDestroy(NcclComm* comm) override;
  NcclResult CommAbort(NcclComm* comm) override;
  NcclResult CommSplit(NcclComm* comm, int color, int key, NcclComm** split) override;
  NcclResult CommShape(NcclComm* comm, int* rank, int* ranks) override;
  NcclResult CommRegister(NcclComm* comm, void* data, size_t bytes, void** handle) override;
  NcclResult CommDeregister(NcclComm* comm, void* handle) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;
  NcclResult AllReduce(const void* send, void* receive, size_t count, NcclDType dtype,
                       NcclReduceOp op, NcclComm* comm, CudaStream* stream) override;
  NcclResult ReduceScatter(const void* send, void* receive, size_t count, NcclDType dtype,
                           NcclReduceOp op, NcclComm* comm, CudaStream* stream) override;
  NcclResult AllGather(const void* send, void* receive, size_t count, NcclDType dtype,
                       NcclComm* comm, CudaStream* stream) override;
  NcclResult Broadcast(const void* send, void* receive, size_t count, NcclDType dtype, int root,
                       NcclComm* comm, CudaStream* stream) override;
  NcclResult Send(const void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                  CudaStream* stream) override;
  NcclResult Recv(void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                  CudaStream* stream) override;
  NcclResult RedOpCreatePreMulSum(NcclReduceOp* op, const void* scalar, NcclDType dtype,
                                  NcclComm* comm) override;
  NcclResult RedOpDestroy(NcclReduceOp op, NcclComm* comm) override;

  // The wrong uses so far, in order. A test ends with EXPECT_THAT(violations(), IsEmpty()).
  std::vector<std::string> violations() const;
  // The calls so far by name, in order: "AllReduce", "CommRegister", ...
  std::vector<std::string> calls() const;
  int live_comms() const;
  int aborts() const { return aborts_; }
  // How many calls queued work on streams, for each of which a non-blocking NCCL starts a thread.
  int jobs() const { return jobs_; }
  // How often CommGetAsyncError gave kInProgress.
  int polls() const { return polls_; }
  // How many kernels of collectives the streams of `device` have come to so far.
  int kernels_arrived(int device) { return LaunchesOf(device)->arrived(); }
  // Lets every call stay in progress while `held`.
  void HoldCalls(bool held) { held_ = held; }

 private:
  class Use;  // Guards one call on one communicator.
  struct Queued {
    std::shared_ptr<FakeNcclComm> comm;
    CudaStream* stream;
    FakeOperation operation;
  };
  std::shared_ptr<FakeNcclComm> Find(NcclComm* comm, const char* call);
  NcclResult Violation(const std::string& text);
  struct ThreadGroup;
  static ThreadGroup& thread_group();
  static constexpr size_t kEveryRank = ~size_t{0};  // Stands for as many parts as there are ranks.
  // Checks that the operation's buffers hold so many parts of its count, then queues it.
  NcclResult Start(const char* call, NcclComm* comm, CudaStream* stream, FakeOperation operation,
                   size_t send_parts, size_t receive_parts);
  NcclResult Launch(const std::vector<Queued>& operations);
  // Queues `operation` on the stream as a kernel, which is in flight until it ends.
  void Enqueue(const std::shared_ptr<FakeNcclComm>& comm, CudaStream* stream,
               std::function<void()> operation);
  std::shared_ptr<FakeLaunches> LaunchesOf(int device);
  NcclComm* Add(std::shared_ptr<FakeNcclComm> comm);
  void CheckName(const FakeNcclComm& comm, const char* call);
  // Ends the split of `comm` that is under way, if it can end. True if none is under way any more.
  bool AdvanceSplit(FakeNcclComm& comm);
  void EndSplit(FakeNcclComm& comm);
  // Blocks until `done` gives true or the fakes end.
  void WaitFor(const std::function<bool()>& done);

  FakeFabric* const fabric_;
  FakeCuda* const cuda_;
  const FakeNcclFaults faults_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> aborts_{0};
  std::atomic<int> operations_{0};
  std::atomic<int> jobs_{0};
  std::atomic<int> polls_{0};
  std::atomic<bool> held_{false};
  mutable std::mutex mutex_;
  std::map<NcclComm*, std::shared_ptr<FakeNcclComm>> comms_;
  std::map<int, std::shared_ptr<FakeLaunches>> launches_;  // By device.
  std::vector<std::string> violations_;
  std::vector<std::string> calls_;
};

}  // namespace dtrain::comm
