// How a group runs one collective: over shared memory, over messages, or both. Internal to comm.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/call.h"
#include "comm/group.h"
#include "comm/transport/wait_context.h"

namespace dtrain::comm {

// A call with everything that is needed to run it.
struct Call {
  CallHeader header = {};
  Buffer input = {};  // Equal to output for operations in place.
  Buffer output = {};
  int peer = -1;  // Of a send or receive.
  double* sum_of_squares = nullptr;
  // Keeps the peers' mappings while the call runs; null when the source is not registered.
  std::shared_ptr<Registration> registration = {};
  // Of a register call: what to register, and where the result goes.
  std::shared_ptr<SymmetricBuffer> buffer = {};
  std::unique_ptr<Registration>* registered = nullptr;
  // Of this call, when earlier than the group's timeout.
  Deadline deadline = Deadline::Infinite();
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string transport() const = 0;
  // Runs a collective to its end, on one thread at a time, in the order of sequence numbers. An
  // error breaks the group.
  absl::Status Run(const Call& call, const WaitContext& context);
  // Runs a send or a receive.
  virtual absl::Status RunPointToPoint(absl::Span<const Call> calls,
                                       const WaitContext& context) = 0;
  // Runs the collective `call` that registers `buffer`.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(
      const Call& call, std::shared_ptr<SymmetricBuffer> buffer, const WaitContext& context) = 0;
  // Whether `data` lies in the buffer of `registration`, and where.
  virtual bool Locate(const Registration& registration, const Buffer& buffer,
                      CallHeader& header) const = 0;
  // Tells the peers that this rank gives up. Any thread; never blocks.
  virtual void Break(const absl::Status& reason) = 0;
  // After the Break of a call that failed, by the thread that ran it: peers reach this call's
  // memory no more.
  virtual void Withdraw() {}
  // What a peer said to Break, or OK.
  virtual absl::Status BrokenStatus() const = 0;
  // The same between calls, by the thread that would run one: what has come since, without waiting.
  virtual absl::Status Glance() { return BrokenStatus(); }

  // The call that is run next, or the first of several: for what peers are told of this rank.
  virtual void NoteCall(const CallHeader& /*header*/) {}
  // A call ended with `timed_out` because its time was over: the same with the ranks that are
  // really missing, which the peers are asked for within kAnswerGrace. By the thread that ran it.
  virtual absl::Status NameTheMissing(const absl::Status& timed_out,
                                      const WaitContext& /*context*/) {
    return timed_out;
  }

  // `following` gives the header of the collective that is run next, when it is known already: a
  // backend may show it to the peers before the call at hand has ended. Called inside Run.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those that take it keep it.
  virtual void SetFollowing(std::function<std::optional<CallHeader>()> /*following*/) {}

  // The parts of Run, for backends that are made of others.
  // The first part of every collective: shows the call to the peers, or gets ready to. Over
  // messages it travels with the first bytes of what follows, and is compared there.
  virtual absl::Status Begin(const Call& call, const WaitContext& context) = 0;
  // Waits until all ranks have made this call and it is the same: all of a barrier.
  virtual absl::Status Meet(const Call& call, const WaitContext& context) = 0;
  virtual absl::Status AllReduce(const Call& call, const WaitContext& context) = 0;
  virtual absl::Status ReduceScatter(const Call& call, const WaitContext& context) = 0;
  virtual absl::Status AllGather(const Call& call, const WaitContext& context) = 0;
  virtual absl::Status Broadcast(const Call& call, const WaitContext& context) = 0;
  virtual absl::Status AllToAll(const Call& call, const WaitContext& context) = 0;
};

}  // namespace dtrain::comm
