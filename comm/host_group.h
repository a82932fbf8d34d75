// The Group on host memory: queues calls, runs them on its Backend, watches deadlines. Thread-safe,
// and owns the backend and with it all connections. Internal to comm; made by CreateHostGroup.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/call_queue.h"
#include "comm/collectives/backend.h"
#include "comm/group.h"

namespace dtrain::comm {

class HostGroup final : public Group {
 public:
  // `backend` is null for a group of one rank.
  HostGroup(const GroupOptions& options, std::unique_ptr<Backend> backend);
  ~HostGroup() override;

  const GroupOptions& options() const { return options_; }
  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  uint64_t epoch() const override { return options_.epoch; }
  std::string transport() const override;
  uint64_t sequence() const override;
  void SetBeside() override { queue_->recorder().SetBeside(); }
  void SetStep(int64_t step) override { step_.store(step, std::memory_order_relaxed); }
  absl::StatusOr<std::unique_ptr<Registration>> Register(
      std::shared_ptr<SymmetricBuffer> buffer) override;
  absl::StatusOr<Work> AllReduce(Buffer buffer, ReduceOp op,
                                 const CollectiveOptions& options) override;
  absl::StatusOr<Work> ReduceScatter(Buffer input, Buffer output, ReduceOp op,
                                     const CollectiveOptions& options) override;
  absl::StatusOr<Work> AllGather(Buffer input, Buffer output,
                                 const CollectiveOptions& options) override;
  absl::StatusOr<Work> Broadcast(Buffer buffer, int root,
                                 const CollectiveOptions& options) override;
  absl::StatusOr<Work> AllToAll(Buffer input, Buffer output,
                                const CollectiveOptions& options) override;
  absl::StatusOr<Work> Send(Buffer buffer, int peer, const CollectiveOptions& options) override;
  absl::StatusOr<Work> Receive(Buffer buffer, int peer, const CollectiveOptions& options) override;
  absl::Status Barrier(Deadline deadline) override;
  void Abort(const std::string& reason) override;
  std::string FlightRecord() const override;

 private:
  // The buffers of this epoch that peers can reach; shared with the registrations handed out.
  struct Registry {
    std::mutex mutex;
    std::vector<std::weak_ptr<Registration>> live;
  };
  class Handle;

  absl::Status CheckBuffer(const Buffer& buffer, absl::string_view what) const;
  absl::Status CheckPeer(int peer, absl::string_view what) const;
  // Fills the members that every call has, gives the call its sequence number and queues it.
  absl::StatusOr<Work> Start(Call call, const CollectiveOptions& options);
  absl::Status RunAlone(const Call& call) const;
  void FindRegistration(Call& call) const;
  absl::Status Run(absl::Span<const Call> calls, absl::Duration timeout);
  absl::Status RunWithin(absl::Span<const Call> calls, Deadline deadline);
  absl::Status RunOnBackend(absl::Span<const Call> calls, const WaitContext& context);
  absl::Status Explain(const absl::Status& status, const Call& call, absl::Duration timeout) const;
  // `reported`: the caller knows the reason already.
  void BreakWith(const absl::Status& reason, bool reported = false);

  const GroupOptions options_;
  const std::unique_ptr<Backend> backend_;
  const std::shared_ptr<Registry> registry_ = std::make_shared<Registry>();
  mutable std::mutex order_mutex_;  // Sequence numbers are given and queued in one step.
  uint64_t sequence_ = 0;
  std::atomic<int64_t> step_{-1};
  std::shared_ptr<CallQueue> queue_;
};

}  // namespace dtrain::comm
