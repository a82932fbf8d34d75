// A group that passes every call on to another: for tests that change some of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "comm/group.h"

namespace dtrain::testing {

class PassingGroup : public comm::Group {
 public:
  // REQUIRES: `under` outlives this object.
  explicit PassingGroup(comm::Group& under) : under_(under) {}

  int rank() const override { return under_.rank(); }
  int size() const override { return under_.size(); }
  uint64_t epoch() const override { return under_.epoch(); }
  std::string transport() const override { return under_.transport(); }
  uint64_t sequence() const override { return under_.sequence(); }
  void SetStep(int64_t step) override { under_.SetStep(step); }
  absl::StatusOr<std::unique_ptr<comm::Registration>> Register(
      std::shared_ptr<comm::SymmetricBuffer> buffer) override {
    return under_.Register(std::move(buffer));
  }
  absl::StatusOr<comm::Work> AllReduce(comm::Buffer buffer, comm::ReduceOp op,
                                       const comm::CollectiveOptions& options) override {
    return under_.AllReduce(buffer, op, options);
  }
  absl::StatusOr<comm::Work> ReduceScatter(comm::Buffer input, comm::Buffer output,
                                           comm::ReduceOp op,
                                           const comm::CollectiveOptions& options) override {
    return under_.ReduceScatter(input, output, op, options);
  }
  absl::StatusOr<comm::Work> AllGather(comm::Buffer input, comm::Buffer output,
                                       const comm::CollectiveOptions& options) override {
    return under_.AllGather(input, output, options);
  }
  absl::StatusOr<comm::Work> Broadcast(comm::Buffer buffer, int root,
                                       const comm::CollectiveOptions& options) override {
    return under_.Broadcast(buffer, root, options);
  }
  absl::StatusOr<comm::Work> AllToAll(comm::Buffer input, comm::Buffer output,
                                      const comm::CollectiveOptions& options) override {
    return under_.AllToAll(input, output, options);
  }
  absl::StatusOr<comm::Work> Send(comm::Buffer buffer, int peer,
                                  const comm::CollectiveOptions& options) override {
    return under_.Send(buffer, peer, options);
  }
  absl::StatusOr<comm::Work> Receive(comm::Buffer buffer, int peer,
                                     const comm::CollectiveOptions& options) override {
    return under_.Receive(buffer, peer, options);
  }
  absl::Status Barrier(Deadline deadline) override { return under_.Barrier(deadline); }
  void Abort(const std::string& reason) override { under_.Abort(reason); }
  std::string FlightRecord() const override { return under_.FlightRecord(); }

 private:
  comm::Group& under_;
};

}  // namespace dtrain::testing
