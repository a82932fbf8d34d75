// The Group of CUDA buffers over NCCL, one device a rank.
//
// Collectives run in order on the group's own stream. Each first waits, on the device, for the work
// that the caller's compute stream holds at the call; JoinStream makes the compute stream wait for
// the results. Calls queue work and return; none blocks on the device. The watchdog thread finishes
// Works. It breaks the group on an error, a passed deadline or Abort, with a report that names the
// ranks that did not come. Groups that are split off one another end together, because one that
// hangs holds up the streams of the others. If a Work ends with an error, the device may still use
// the buffers until the group is destroyed. An abort that does not return ends the process
// (nccl_abort.h). Thread-safe; all ranks call in the same order.
//
// With 16 bits on the wire (CollectiveOptions::wire, fp32 buffers) ranks exchange rounded parts,
// add them in fp32 in rank order, round once more and share the sums. That sends half as many bytes
// as NCCL's own reductions and reads more memory. A group has one communicator and one stream.
// Split with one colour gives a second of both for another role, so that gathers need not queue
// behind reductions. sum_of_squares is host memory that must live until the Work is done.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "comm/group.h"
#include "comm/nccl/cuda_api.h"
#include "comm/nccl/device_group.h"
#include "comm/nccl/nccl_abort.h"
#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_family.h"
#include "comm/nccl/nccl_kernels.h"
#include "comm/nccl/nccl_scratch.h"
#include "comm/nccl/nccl_watchdog.h"

namespace dtrain::comm {

// The interfaces that the plugin (or the fake) gives. REQUIRES: outlives every group.
struct NcclSeams {
  NcclApi* nccl = nullptr;
  CudaApi* cuda = nullptr;
  NcclKernels kernels;
};

struct NcclGroupOptions {
  GroupOptions group;
  int device = 0;
  // Each collective follows the work that is queued on this stream; null: the default stream.
  CudaStream* compute_stream = nullptr;
  size_t pending_max = 1024;  // With so many unfinished collectives a further call waits.
  // How many ranks meet at one unique id. More ranks use several ids (scalable initialisation) if
  // this NCCL can. Equal on all ranks.
  int ranks_per_id = 128;
  absl::Duration abort_bound = kAbortBound;  // See AbortOrEndProcess.
};

class NcclGroup final : public DeviceGroup {
 public:
  // Collective and blocking: the unique id travels through `store` (null when size is 1).
  // DeadlineExceeded names the ranks that did not come.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Create(const NcclSeams& seams, Store* store,
                                                           const NcclGroupOptions& options);
  // Waits at most 2 s for the peers to close as well, then aborts, which takes at most abort_bound.
  ~NcclGroup() override;

  int rank() const override { return options_.group.rank; }
  int size() const override { return options_.group.size; }
  uint64_t epoch() const override { return options_.group.epoch; }
  std::string transport() const override { return "nccl"; }
  uint64_t sequence() const override { return sequence_; }

  // Host memory is refused (InvalidArgument): see RegisterDevice.
  absl::StatusOr<std::unique_ptr<Registration>> Register(
      std::shared_ptr<SymmetricBuffer> buffer) override;
  // The group drops the registration before its communicator in any case.
  absl::StatusOr<std::unique_ptr<Registration>> RegisterDevice(void* data, size_t bytes) override;

  absl::StatusOr<Work> AllReduce(Buffer buffer, ReduceOp op,
                                 const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> ReduceScatter(Buffer input, Buffer output, ReduceOp op,
                                     const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> AllGather(Buffer input, Buffer output,
                                 const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> Broadcast(Buffer buffer, int root,
                                 const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> AllToAll(Buffer input, Buffer output,
                                const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> Send(Buffer buffer, int peer,
                            const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> Receive(Buffer buffer, int peer,
                               const CollectiveOptions& options = {}) override;
  absl::Status Barrier(Deadline deadline) override;
  void Abort(const std::string& reason) override { watchdog_->Abort(reason); }
  void SetStep(int64_t step) override { step_.store(step, std::memory_order_relaxed); }
  std::string FlightRecord() const override;

  // Makes one call of NCCL, except for reductions that take several calls with kernels between
  // them: those in rank order (deterministic), with 16 bits on the wire, or with a sum of squares.
  absl::Status ReduceScatterCoalesced(absl::Span<const ReduceScatterCall> calls,
                                      ReduceOp op) override;
  absl::Status Then(std::function<absl::Status(CudaStream* stream)> launch) override;
  absl::Status JoinStream(CudaStream* stream) override;
  absl::Status Await(CudaEvent* event, CudaStream* stream) override;
  absl::Status Health() const override { return watchdog_->health(); }
  // The bounds between which this group learns how long a collective may take.
  const TimeoutLimits& limits() const { return watchdog_->limits(); }
  // The group of the ranks with the same `color`, in the order of `key`; null for a negative
  // colour. Collective and blocking. An error ends this group too, because NCCL may still be busy
  // with the split.
  absl::StatusOr<std::unique_ptr<NcclGroup>> Split(int color, int key, const std::string& name);
  absl::StatusOr<std::unique_ptr<DeviceGroup>> SplitGroup(Store* /*store*/, int color, int key,
                                                          const std::string& name) override {
    return Split(color, key, name);
  }
  // Waits for the collectives, then closes together with the other ranks; aborts if that fails.
  absl::Status Close(Deadline deadline);

 private:
  struct Call;  // One collective, with its text, buffers and options (nccl_call.h).
  NcclGroup(const NcclSeams& seams, Store* store, NcclGroupOptions options);
  absl::Status Begin(std::shared_ptr<NcclCommunicator> communicator,
                     std::shared_ptr<NcclFamily> family);
  // Makes the group's device the calling thread's current one.
  absl::Status ChooseDevice() const;
  absl::Status CheckBuffer(absl::string_view what, const Buffer& buffer) const;
  absl::Status CheckReduction(absl::string_view what, const Buffer& buffer, ReduceOp op,
                              const CollectiveOptions& options) const;
  // `whole` must be size() parts like `part`.
  absl::Status CheckParts(absl::string_view what, const Buffer& part, const Buffer& whole) const;
  absl::Status CheckPeer(absl::string_view what, int peer) const;
  absl::StatusOr<Call> MakeReduceScatter(const Buffer& input, const Buffer& output, ReduceOp op,
                                         const CollectiveOptions& options);
  // Whether one call of NCCL is all of this reduce-scatter.
  bool IsPlain(const ReduceScatterCall& call, ReduceOp op) const;
  // The call's own deadline in `given` replaces the learnt limit.
  absl::StatusOr<Work> Start(const Call& call, const CollectiveOptions& given);
  // Starts several calls at once: `queue` puts them all on the stream. `given` has one entry for
  // each call.
  absl::Status StartTogether(absl::Span<const Call> calls,
                             absl::Span<const ReduceScatterCall> given,
                             absl::FunctionRef<absl::Status(Deadline)> queue);
  // The steps of a start, in their order. The first makes a pending call with its limits.
  NcclPending WithLimits(const CollectiveOptions& given) const;
  // Waits until there is room for `calls` more.
  absl::Status Admit(size_t calls, Deadline deadline);
  // Gives `pending` its record and its events. `before` calls were prepared before it and are not
  // watched yet.
  absl::Status Prepare(const Call& call, uint64_t before, NcclPending* pending);
  // Ends the start of calls that could not be queued, for the reason `queued`.
  absl::Status Fail(absl::string_view what, const absl::Status& queued,
                    absl::Span<const NcclPending> all);
  // Hands a call that was queued to the watchdog.
  void Watch(NcclPending pending);
  absl::Status Queue(const Call& call, CudaEvent* after, Deadline deadline, NcclPending* pending);
  absl::Status QueueTogether(absl::Span<const ReduceScatterCall> given,
                             absl::Span<const NcclPending> all,
                             absl::FunctionRef<absl::Status(Deadline)> queue);
  absl::Status QueueSum(const Call& call, Deadline deadline, NcclPending* pending);
  // Makes one call of NCCL, with NCCL's name of `dtype`.
  absl::Status CallNccl(absl::string_view what, DType dtype,
                        absl::FunctionRef<NcclResult(NcclApi&, NcclComm*, NcclDType)> call,
                        Deadline deadline);
  // The same, with NCCL's operator for `op` as well.
  absl::Status CallNccl(
      absl::string_view what, DType dtype, ReduceOp op,
      absl::FunctionRef<NcclResult(NcclApi&, NcclComm*, NcclDType, NcclReduceOp)> call,
      Deadline deadline);
  // The rank-ordered forms (deterministic) exchange parts, add them in rank order and share the
  // sums.
  bool InOrder(const Buffer& buffer, ReduceOp op) const;
  absl::Status OrderedReduceScatter(const Buffer& input, const Buffer& output, ReduceOp op,
                                    Deadline deadline);
  absl::Status OrderedAllReduce(const Buffer& buffer, ReduceOp op, Deadline deadline);
  // The same with 16 bits on the wire, for buffers of fp32.
  absl::Status NarrowAllReduce(const Buffer& buffer, ReduceOp op, Wire wire, Deadline deadline);
  absl::Status NarrowReduceScatter(const Buffer& input, const Buffer& output, ReduceOp op,
                                   Wire wire, Deadline deadline);
  absl::Status QueueCast(const void* from, DType from_dtype, void* to, DType to_dtype,
                         size_t count);
  // Sends part r of `from` [size x count] to rank r. `to` [size x count] gets one part of each
  // rank.
  absl::Status ExchangeParts(const char* from, char* to, size_t count, DType dtype,
                             Deadline deadline);
  float Scale(ReduceOp op) const;
  absl::Status FollowComputeStream(CudaEvent* after);

  const NcclSeams seams_;
  Store* const store_;
  const NcclGroupOptions options_;
  const std::string label_;
  const std::shared_ptr<FlightRecorder> recorder_;
  std::atomic<int64_t> step_{-1};
  CudaStream* stream_ = nullptr;
  CudaEvent* ordering_event_ = nullptr;  // One stream waits for it behind another.
  std::shared_ptr<NcclCommunicator> communicator_;
  std::shared_ptr<NcclFamily> family_;
  std::unique_ptr<NcclScratch> scratch_;
  std::unique_ptr<NcclWatchdog> watchdog_;
  std::mutex start_mutex_;  // One collective is queued at a time.
  std::atomic<uint64_t> sequence_{0};
  // Sends and receives do not count, so that the number is the same on every rank.
  uint64_t collectives_ = 0;
  std::atomic<uint64_t> splits_{0};
};

}  // namespace dtrain::comm
