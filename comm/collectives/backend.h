// How a group runs one collective: over shared memory, over messages, or both. One thread at a time
// runs calls; Break may come from any. A group owns its backend. Internal to comm.
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
  int peer = -1;  // The other rank of a send or receive.
  double* sum_of_squares = nullptr;
  // Keeps the peers' mappings while the call runs; null when the source is not registered.
  std::shared_ptr<Registration> registration = {};
  // Register calls only: the buffer to register, and where the result goes.
  std::shared_ptr<SymmetricBuffer> buffer = {};
  std::unique_ptr<Registration>* registered = nullptr;
  // The call's own deadline, if it is earlier than the group's timeout.
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
  // Called after Break by the thread whose call failed: from then on peers no longer reach the
  // call's memory.
  virtual void Withdraw() {}
  // The reason that a peer gave to Break, or OK.
  virtual absl::Status BrokenStatus() const = 0;
  // The same between calls, after reading the peers' messages without waiting. By the thread that
  // would run a call.
  virtual absl::Status PollPeers() { return BrokenStatus(); }

  // Notes the call that runs next, or the first of several, so that peers that ask can be told.
  virtual void NoteCall(const CallHeader& /*header*/) {}
  // Called by the thread whose call ended with `timed_out`. Asks the peers, within kAnswerGrace,
  // which ranks are really missing, and gives the error with their names.
  virtual absl::Status NameTheMissing(const absl::Status& timed_out,
                                      const WaitContext& /*context*/) {
    return timed_out;
  }

  // `following` gives the header of the collective that is run next, when it is known already: a
  // backend may show it to the peers before the call at hand has ended. Called inside Run.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): those that take it keep it.
  virtual void SetFollowing(std::function<std::optional<CallHeader>()> /*following*/) {}

  // The parts of Run, for backends that are made of others.
  // The first part of every collective: shows the call to the peers, or prepares to. Over messages
  // its header travels with the first data, and is compared then.
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
