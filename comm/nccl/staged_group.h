// The group of CUDA buffers for ranks that cannot use NCCL, because two of them share a GPU or
// there is no NCCL library. Data goes through pinned host memory and a host group.
//
// A call records an event on the compute stream and returns. One worker thread queues the copy to
// the host behind that event, so that later calls do not delay it, and waits for the copy. It then
// runs the collective on the host group and queues the copy back. JoinStream and Work::Wait wait
// for that thread. A group of one rank exchanges nothing and has no thread. Results have the bits
// of the host group's. sum_of_squares is host memory, as with NcclGroup. Thread-safe as Group is.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/threads/worker.h"
#include "comm/nccl/device_group.h"
#include "comm/nccl/nccl_work.h"

namespace dtrain::comm {

struct StagedGroupOptions {
  CudaApi* cuda = nullptr;  // Outlives the group.
  int device = 0;
  CudaStream* compute_stream = nullptr;
  size_t pending_max = 256;  // With so many unfinished collectives a further call waits.
};

class StagedGroup final : public DeviceGroup {
 public:
  // No other group may use `host`, because the worker's calls would mix with its calls.
  static absl::StatusOr<std::unique_ptr<StagedGroup>> Create(std::unique_ptr<Group> host,
                                                             const StagedGroupOptions& options);
  ~StagedGroup() override;

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  uint64_t epoch() const override { return host_->epoch(); }
  std::string transport() const override;
  uint64_t sequence() const override { return host_->sequence(); }
  void SetStep(int64_t step) override { host_->SetStep(step); }
  std::string FlightRecord() const override { return host_->FlightRecord(); }

  absl::StatusOr<std::unique_ptr<Registration>> Register(
      std::shared_ptr<SymmetricBuffer> buffer) override;
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
  // Both are Unimplemented, because no training step needs them.
  absl::StatusOr<Work> Send(Buffer buffer, int peer,
                            const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> Receive(Buffer buffer, int peer,
                               const CollectiveOptions& options = {}) override;
  absl::Status Barrier(Deadline deadline) override;
  void Abort(const std::string& reason) override;

  // Runs the calls one after the other.
  absl::Status ReduceScatterCoalesced(absl::Span<const ReduceScatterCall> calls,
                                      ReduceOp op) override;
  absl::Status Then(std::function<absl::Status(CudaStream* stream)> launch) override;
  absl::Status JoinStream(CudaStream* stream) override;
  absl::Status Await(CudaEvent* event, CudaStream* stream) override;
  absl::Status Health() const override;
  absl::StatusOr<std::unique_ptr<Registration>> RegisterDevice(void* data, size_t bytes) override;
  absl::StatusOr<std::unique_ptr<DeviceGroup>> SplitGroup(Store* store, int color, int key,
                                                          const std::string& name) override;

 private:
  // The collective on the host. It gets host copies of both buffers, or of one if `output` is null
  // or lies inside `input`.
  using HostCall = std::function<absl::StatusOr<Work>(Group& host, Buffer input, Buffer output)>;
  class Pinned;
  StagedGroup(std::unique_ptr<Group> host, const StagedGroupOptions& options);
  absl::Status CheckBuffer(const Buffer& buffer) const;
  // The event after which a call's data are ready on the device.
  struct ReadyEvent {
    CudaEvent* event = nullptr;
    bool ours = false;  // This group recorded it on the compute stream, at the call.
  };
  absl::StatusOr<Work> Start(Buffer input, Buffer output, CudaEvent* after, HostCall run);
  // `after`, or a new event on the compute stream if it is null.
  absl::StatusOr<ReadyEvent> ReadyEventOf(CudaEvent* after);
  absl::Status Exchange(Buffer input, Buffer output, const ReadyEvent& ready, const HostCall& run);
  absl::Status Copy(void* to, const void* from, size_t bytes);
  // Lets the group's stream wait for `ready`.
  absl::Status Follow(const ReadyEvent& ready);
  absl::Status AwaitWorker();
  void Break(const absl::Status& status);

  const std::unique_ptr<Group> host_;
  const StagedGroupOptions options_;
  CudaStream* stream_ = nullptr;
  CudaEvent* event_ = nullptr;  // One stream waits for it behind another.
  std::mutex start_mutex_;      // Guards event_; one call is queued at a time.
  std::mutex events_mutex_;
  // Each call on its way has an event of its own, and later calls use it again.
  std::vector<CudaEvent*> free_events_;
  // The worker's host copies: of the larger buffer, and of an input that lies outside of it.
  std::unique_ptr<Pinned> whole_;
  std::unique_ptr<Pinned> apart_;
  mutable std::mutex health_mutex_;
  absl::Status health_;
  // Null in a group of one rank. It is the last member because its closures use the ones above.
  std::unique_ptr<Worker> worker_;
};

}  // namespace dtrain::comm
