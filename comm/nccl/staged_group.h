// The group of CUDA buffers where NCCL cannot serve (two ranks on one GPU, no NCCL library): data
// goes through pinned host memory and a host group.
//
// A call marks its place on the compute stream and returns; one worker thread has the data copied
// to the host behind that place, whatever calls came later, waits for it, runs the collective on
// the host group and queues the copy back. JoinStream and Work::Wait wait for that thread. A group
// of one rank exchanges nothing and has no thread. Results are those of the host group, bit for
// bit. sum_of_squares is host memory, as with NcclGroup. Thread-safe as Group is.
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
  size_t pending_max = 256;  // Collectives not finished; a further call waits.
};

class StagedGroup final : public DeviceGroup {
 public:
  // `host` is for this group alone: the worker's calls would mix with others'.
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
  // Unimplemented: nothing of a training step needs them.
  absl::StatusOr<Work> Send(Buffer buffer, int peer,
                            const CollectiveOptions& options = {}) override;
  absl::StatusOr<Work> Receive(Buffer buffer, int peer,
                               const CollectiveOptions& options = {}) override;
  absl::Status Barrier(Deadline deadline) override;
  void Abort(const std::string& reason) override;

  // One after the other.
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
  // The part of a collective that goes through the host. It gets host copies of both buffers, or of
  // one where `output` is null or lies inside `input`.
  using HostCall = std::function<absl::StatusOr<Work>(Group& host, Buffer input, Buffer output)>;
  class Pinned;
  StagedGroup(std::unique_ptr<Group> host, const StagedGroupOptions& options);
  absl::Status CheckBuffer(const Buffer& buffer) const;
  // The event after which a call's data are ready on the device.
  struct Place {
    CudaEvent* event = nullptr;
    bool ours = false;  // Recorded by this group on the compute stream, at the call.
  };
  absl::StatusOr<Work> Start(Buffer input, Buffer output, CudaEvent* after, HostCall run);
  absl::StatusOr<Place> PlaceOfCall(CudaEvent* after);
  absl::Status Exchange(Buffer input, Buffer output, const Place& place, const HostCall& run);
  absl::Status Copy(void* to, const void* from, size_t bytes);
  // The group's stream waits for it.
  absl::Status Follow(const Place& place);
  absl::Status AwaitWorker();
  void Break(const absl::Status& status);

  const std::unique_ptr<Group> host_;
  const StagedGroupOptions options_;
  CudaStream* stream_ = nullptr;
  CudaEvent* event_ = nullptr;  // Between streams.
  std::mutex start_mutex_;      // Guards event_; one call is queued at a time.
  std::mutex places_mutex_;
  std::vector<CudaEvent*> free_places_;  // One for each call that is on its way, used again.
  std::unique_ptr<Pinned> whole_;        // Host copies of the worker: the larger buffer,
  std::unique_ptr<Pinned> apart_;        // and of an input that lies elsewhere.
  mutable std::mutex health_mutex_;
  absl::Status health_;
  std::unique_ptr<Worker> worker_;  // Null when alone. Last: its closures use the members above.
};

}  // namespace dtrain::comm
