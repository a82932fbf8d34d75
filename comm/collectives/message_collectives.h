// Collectives over a Transport that moves messages (TCP between hosts): compares the call with
// every peer, then runs the schedule of the algorithm that algorithm.h chooses. Owns the transport.
// One thread at a time runs calls; Break may come from any.
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
  std::string name = "tcp";  // The transport's name, for records.
  Algorithm algorithm = Algorithm::kAutomatic;
  bool deterministic = false;
  LinkCost link_cost = {};
  // The members' ranks in the group, for reports, if the transport connects only some of its ranks;
  // empty: the same ranks.
  std::vector<int> group_ranks = {};
  // The divisor of an average if each rank's input is a sum over several ranks; 0: the number of
  // ranks.
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
  // A call keeps the registration of the buffer that its input lies in; the header does not name
  // it, since which memory is reached without a copy concerns only two ranks.
  bool Locate(const Registration& registration, const Buffer& buffer,
              CallHeader& header) const override;
  // The part of Register that involves no other rank.
  absl::StatusOr<std::unique_ptr<Registration>> Hold(std::shared_ptr<SymmetricBuffer> buffer);
  void Break(const absl::Status& reason) override { transport_->Shutdown(reason); }
  void Withdraw() override { transport_->Withdraw(); }
  absl::Status BrokenStatus() const override { return absl::OkStatus(); }  // Move tells.
  absl::Status PollPeers() override { return transport_->PollPeers(); }
  void NoteCall(const CallHeader& header) override;
  absl::Status NameTheMissing(const absl::Status& timed_out, const WaitContext& context) override {
    return NameTheMissing(timed_out, transport_->Awaited(), context);
  }
  // The same for a call that waits for `awaited` in shared memory.
  absl::Status NameTheMissing(const absl::Status& timed_out, absl::Span<const int> awaited,
                              const WaitContext& context);
  // The same while a call waits in shared memory; peers that ask are told `awaited`.
  absl::Status PollPeers(absl::FunctionRef<std::vector<int>()> awaited);

  void SetFollowing(std::function<std::optional<CallHeader>()> following) override {
    following_ = std::move(following);
  }

  // Every rank tells every other which call it makes, in front of the call's first bytes, and no
  // bytes of another rank are summed before all have been compared: an error when they differ.
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
  // Makes `room` at least `bytes` long; its contents are lost when it grows.
  void Grow(Room& room, size_t bytes);
  // Collectives without a reduction, which move bytes.
  absl::Status MoveOnly(const Call& call, const WaitContext& context);
  // The headers of the call at hand or, once it is compared, of the one that follows.
  struct Meeting {
    CallHeader mine;
    std::vector<CallHeader> theirs;  // By rank.
    std::vector<Transfer> transfers;
    bool begun = false;  // Begin has been called, and headers are not compared yet.
    bool ahead = false;  // Its transfers began during the call before.
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
  std::function<std::optional<CallHeader>()> following_;  // Null: the next call is not known.
  Meeting meeting_;
  Partials partials_;
  Room scratch_;         // Scratch memory of schedules.
  Room wire_;            // The buffer in 16 bits, when that is what travels.
  bool warned_ = false;  // The warning that memory cannot be pinned was logged.
};

}  // namespace dtrain::comm
