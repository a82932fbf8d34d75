// Collectives over a Transport that moves messages (TCP between hosts): compares the call with
// every peer, then runs the schedule of the algorithm that algorithm.h chooses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/collectives/backend.h"
#include "comm/collectives/point_to_point.h"
#include "comm/collectives/schedule.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

struct MessageOptions {
  std::string name = "tcp";  // Of the transport, for records.
  Algorithm algorithm = Algorithm::kAutomatic;
  bool deterministic = false;
  LinkCost link_cost = {};
  // Of a transport between some ranks of a group: their ranks there, for reports; none: the same.
  std::vector<int> group_ranks = {};
  // What an average divides by, when each rank brings a sum over several; 0: their number.
  int average_over = 0;
  // ScheduleOptions::slice_bytes; equal on all ranks.
  size_t slice_bytes = kSliceBytes;
};

class MessageCollectives final : public Backend {
 public:
  // `options` are equal on all ranks.
  MessageCollectives(std::unique_ptr<Transport> transport, MessageOptions options);

  std::string transport() const override { return options_.name; }
  absl::Status RunPointToPoint(absl::Span<const Call> calls, const WaitContext& context) override {
    return messages_.Run(calls, context);
  }
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Call& call,
                                                         std::shared_ptr<SymmetricBuffer> buffer,
                                                         const WaitContext& context) override;
  // A call keeps the registration of the buffer that its input lies in; the header says nothing of
  // it, since what a transport reaches without copying is a matter between two ranks.
  bool Locate(const Registration& registration, const Buffer& buffer,
              CallHeader& header) const override;
  // The part of Register that is this rank's own.
  absl::StatusOr<std::unique_ptr<Registration>> Hold(std::shared_ptr<SymmetricBuffer> buffer);
  void Break(const absl::Status& reason) override { transport_->Shutdown(reason); }
  void Withdraw() override { transport_->Withdraw(); }
  absl::Status BrokenStatus() const override { return absl::OkStatus(); }  // Move tells.
  absl::Status Glance() override { return transport_->Glance(); }
  void NoteCall(const CallHeader& header) override;
  absl::Status NameTheMissing(const absl::Status& timed_out, const WaitContext& context) override {
    return NameTheMissing(timed_out, transport_->Awaited(), context);
  }
  // The same for a call that waits elsewhere, for `awaited`.
  absl::Status NameTheMissing(const absl::Status& timed_out, absl::Span<const int> awaited,
                              const WaitContext& context);
  // While a call waits elsewhere: what peers said, as Glance; `awaited` is for those that ask.
  absl::Status Hear(absl::FunctionRef<std::vector<int>()> awaited);

  void SetFollowing(std::function<std::optional<CallHeader>()> following) override {
    following_ = std::move(following);
  }

  // Every rank tells every other what it calls, in front of the call's first bytes, and no bytes of
  // another rank are summed before all have been compared: an error when they differ.
  absl::Status Begin(const Call& call, const WaitContext& context) override;
  absl::Status Meet(const Call& /*call*/, const WaitContext& context) override {
    return Compare({}, context);
  }
  absl::Status AllReduce(const Call& call, const WaitContext& context) override;
  absl::Status ReduceScatter(const Call& call, const WaitContext& context) override;
  absl::Status AllGather(const Call& call, const WaitContext& context) override {
    return MoveOnly(call, context);
  }
  absl::Status Broadcast(const Call& call, const WaitContext& context) override {
    return MoveOnly(call, context);
  }
  absl::Status AllToAll(const Call& call, const WaitContext& context) override {
    return MoveOnly(call, context);
  }

 private:
  int GroupRank(int rank) const;
  // Runs the schedule of `call` from `input` to `output`, elements of `dtype`.
  absl::Status RunOn(const Call& call, const char* input, char* output, DType dtype,
                     const WaitContext& context);
  // Memory of this object that the transport reaches.
  struct Room {
    std::vector<char> bytes;
    std::unique_ptr<RegisteredMemory> reached;
  };
  // At least `bytes` of it; what it held is lost when it grows.
  void Grow(Room& room, size_t bytes);
  // What is not reduced moves as bytes.
  absl::Status MoveOnly(const Call& call, const WaitContext& context);
  // The headers of the call at hand or, once it is compared, of the one that follows.
  struct Meeting {
    CallHeader mine;
    std::vector<CallHeader> theirs;  // By rank.
    std::vector<Transfer> transfers;
    bool begun = false;  // By Begin, and not compared yet.
    bool ahead = false;  // It has begun behind the call before.
  };
  void List(const CallHeader& header, Meeting& meeting) const;
  // Ends what Begin began, if anything; `ahead` are the transfers that follow.
  absl::Status Compare(absl::Span<const Transfer> ahead, const WaitContext& context);
  // The transfers with which the next call begins, when it is known.
  absl::Span<const Transfer> Following();
  // This rank's part of a sum over ranks, while it travels.
  struct Partials {
    double mine = 0;
    std::vector<double> theirs;  // By rank.
    std::vector<Transfer> transfers;
  };
  absl::Span<const Transfer> ListPartials();
  // Sums partials_.mine over ranks in rank order.
  absl::Status SumPartials(const Call& call, const WaitContext& context);

  std::unique_ptr<Transport> transport_;
  const MessageOptions options_;
  const int self_;
  const int size_;
  PointToPoint messages_;
  std::function<std::optional<CallHeader>()> following_;  // Null: nobody knows.
  Meeting meeting_;
  Partials partials_;
  Room scratch_;         // Of schedules.
  Room wire_;            // The buffer in 16 bits, when that is what travels.
  bool warned_ = false;  // That memory cannot be pinned.
};

}  // namespace dtrain::comm
