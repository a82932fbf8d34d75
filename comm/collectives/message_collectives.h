// Collectives over a Transport that moves messages (TCP between hosts): the direct algorithm.
//
// Every rank sends each slice straight to the rank that reduces it and gets each result straight
// from there: as many bytes as a ring, one hop instead of 2(n-1), and sums in rank order. The
// buffer goes in chunks; the results of one chunk travel while the next is being reduced.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/collectives/backend.h"
#include "comm/collectives/partition.h"
#include "comm/collectives/point_to_point.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

class MessageCollectives final : public Backend {
 public:
  MessageCollectives(std::unique_ptr<Transport> transport, std::string name);

  std::string transport() const override { return name_; }
  absl::Status Run(const Call& call, const WaitContext& context) override;
  absl::Status RunPointToPoint(absl::Span<const Call> calls, const WaitContext& context) override {
    return messages_.Run(calls, context);
  }
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Call& call,
                                                         std::shared_ptr<SymmetricBuffer> buffer,
                                                         const WaitContext& context) override;
  bool Locate(const Registration& /*registration*/, const Buffer& /*buffer*/,
              CallHeader& /*header*/) const override {
    return false;  // Nothing is reached in place.
  }
  void Break(const absl::Status& reason) override { transport_->Shutdown(reason); }
  absl::Status BrokenStatus() const override { return absl::OkStatus(); }  // Move tells.

 private:
  // Every rank tells every other what it calls; an error when they differ.
  absl::Status CompareWithAll(const CallHeader& mine, const WaitContext& context);
  absl::Status AllReduce(const Call& call, const WaitContext& context);
  absl::Status ReduceScatter(const Call& call, const WaitContext& context);
  absl::Status AllGather(const Call& call, const WaitContext& context);
  absl::Status Broadcast(const Call& call, const WaitContext& context);
  absl::Status AllToAll(const Call& call, const WaitContext& context);
  // Reduces what came in for this rank, with its own share at `own`, in rank order into `output`.
  void ReduceIncoming(const Call& call, const char* own, void* output, size_t count, size_t room,
                      double* squares);
  // Sums `partial` over ranks in rank order.
  absl::Status SumPartials(const Call& call, double partial, const WaitContext& context);

  std::unique_ptr<Transport> transport_;
  const std::string name_;
  const int self_;
  const int size_;
  PointToPoint messages_;
  std::vector<char> incoming_;  // Contributions to this rank's slice, one room a rank.
  std::vector<char> outgoing_;  // The buffer as bf16, when that is what travels.
};

}  // namespace dtrain::comm
