// A NcclApi that moves real bytes between forked processes and is stricter than NCCL about order.
//
// Collectives run on FakeCuda's streams. Wrong use (a destroyed communicator, a second thread at
// the same time, a call before initialisation or the last call ended, memory that is not the
// device's, a stream of another device, a name that has gone, destruction with registrations left)
// gives kInvalidUsage and a line in violations(). As NCCL does, CommAbort frees registrations, and
// waits for what is on the streams; CommSplit stores its result when its job ends; ranges within
// the same pages share a registration. Faults are injected by FakeNcclFaults. Thread-safe in its
// own bookkeeping. REQUIRES: fabric and cuda outlive it; made after fork.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/fake/fake_fabric.h"
#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

struct FakeNcclFaults {
  bool init_hangs = false;        // Never leaves kInProgress.
  bool no_scalable_init = false;  // Behaves as NCCL before 2.23.
  int hanging_operation = -1;     // Index of the operation (from 0) that never ends.
  int async_error_after = -1;     // Operations after which every communicator is broken.
  NcclResult async_error = NcclResult::kRemoteError;
  // CommGetAsyncError answers kInProgress so often after each call, as a busy NCCL does.
  int polls_in_progress = 1;
  bool split_hangs = false;       // The job of CommSplit ends when its parent is aborted.
  bool abort_hangs = false;       // CommAbort never returns.
  bool deregister_hangs = false;  // CommDeregister waits for a peer that is stopped.
};

class FakeNcclComm;

class FakeNccl final : public NcclApi {
 public:
  FakeNccl(FakeFabric* fabric, FakeCuda* cuda, FakeNcclFaults faults = {});
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  // Ends operations that hang.
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

  // Wrong uses so far, in order. A test ends with EXPECT_THAT(violations(), IsEmpty()).
  std::vector<std::string> violations() const;
  // The calls so far by name, in order: "AllReduce", "CommRegister", ...
  std::vector<std::string> calls() const;
  int live_comms() const;
  int aborts() const { return aborts_; }
  // Calls for which a non-blocking NCCL starts a thread: those that queue on streams.
  int jobs() const { return jobs_; }
  // Questions that were answered with "in progress".
  int polls() const { return polls_; }
  // Whether every call stays in progress.
  void HoldCalls(bool held) { held_ = held; }

 private:
  class Use;  // One call on one communicator.
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
  // Checks that `send` and `receive` hold so many parts of the operation's count, then queues it.
  NcclResult Start(const char* call, NcclComm* comm, CudaStream* stream, FakeOperation operation,
                   size_t send_parts, size_t receive_parts);
  NcclResult Launch(const std::vector<Queued>& operations);
  // Has `operation` run on the stream, counted as in flight until it ends.
  void Enqueue(const std::shared_ptr<FakeNcclComm>& comm, CudaStream* stream,
               std::function<void()> operation);
  NcclComm* Add(std::shared_ptr<FakeNcclComm> comm);
  void CheckName(const FakeNcclComm& comm, const char* call);
  // Whether no split of `comm` is under way any more; ends the one that can end.
  bool AdvanceSplit(FakeNcclComm& comm);
  void EndSplit(FakeNcclComm& comm);
  // Until it is true, or the fakes end.
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
  std::vector<std::string> violations_;
  std::vector<std::string> calls_;
};

}  // namespace dtrain::comm
