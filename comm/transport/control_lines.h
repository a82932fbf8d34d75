// The second connection to each peer, silent while all goes well: over it a rank that gives up says
// why, and a rank whose time is over asks the others whom they wait for, so that it names the one
// that is missing and not the one in between.
//
// Messages are few and small, and never wait: a message that does not fit into the socket of a peer
// that reads nothing is dropped. One thread at a time reads and asks; Tell may come from any.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/call.h"
#include "comm/transport/channel.h"
#include "comm/transport/wait_context.h"
#include "comm/transport/who_is_missing.h"

namespace dtrain::comm {

// How long a rank whose time is over waits for the others' answers. Longer than kWatchPeriod: a
// rank that is in no call answers from its watchdog.
inline constexpr absl::Duration kAnswerGrace = absl::Seconds(1);

struct ControlLine {
  // Null: there is none, such as to this rank itself. Must outlive the lines.
  Channel* channel = nullptr;
  std::string name = {};  // "rank 1 (node a, pid 12)".
};

class ControlLines {
 public:
  // The ranks that the current call waits for now.
  using AwaitedOf = absl::FunctionRef<std::vector<int>()>;

  ControlLines(int rank, std::vector<ControlLine> lines);

  // Notes the call that runs now, for answers to peers that ask.
  void NoteCall(const CallHeader& header);
  // Adds the descriptors of all lines, for poll(2).
  void AddDescriptors(std::vector<pollfd>& items) const;
  // Not OK: the line to `peer` broke because its host answered nothing any more. Connections for
  // data do not tell that (net/socket.h), so this line decides.
  bool any_silent() const { return any_silent_; }
  const absl::Status& silence_of(int peer) const {
    return peers_.at(static_cast<size_t>(peer)).silence;
  }
  // Read all messages: give the reason of a peer that gave up, or OK, and answer peers that ask.
  // ReadBetween: this rank is in no call.
  absl::Status Read(AwaitedOf awaited) { return Read(/*in_call=*/true, awaited); }
  absl::Status ReadBetween();
  // The same, but waits a moment for a message of `peer`, because it closed its data connection.
  absl::Status ReadFrom(int peer, AwaitedOf awaited);
  // Called when this rank's time is over while it waits for `awaited`. Asks all others, and waits
  // for answers until the cause is known, at most kAnswerGrace. Gives DeadlineExceeded with the
  // ranks that are missing, or a reason that comes meanwhile, or `timed_out` if nobody can be asked
  // or it is itself a peer's reason.
  absl::Status NameTheMissing(const absl::Status& timed_out, absl::Span<const int> awaited,
                              const WaitContext& context);
  // Tells the peers that this rank gives up. Any thread.
  void Tell(const absl::Status& reason);

 private:
  enum class Kind : int32_t { kReason, kQuestion, kAnswer };
  // A message, byte for byte as it travels.
  struct Message {
    Kind kind = Kind::kReason;
    int32_t code = 0;
    char body[1016] = {};  // A reason's text, or an Answer.
  };
  struct Answer {
    uint64_t sequence = 0;
    uint64_t in_call = 0;
    CallHeader last = {};
    uint8_t awaited[872] = {};  // One bit for each rank; ranks beyond the bits are left out.
  };
  static_assert(sizeof(Answer) == sizeof(Message::body));
  struct Peer {
    bool open = false;
    absl::Status silence = {};  // Not OK: its host fell silent.
    Message in = {};            // Being received.
    Message out = {};
    bool leaving = false;  // `out` has been sent in part.
  };

  bool HasTold();
  // Whether any line has bytes, by one system call for all lines: waits ask many times a second.
  bool AnythingCame();
  absl::Status Read(bool in_call, AwaitedOf awaited);
  absl::Status ReadOne(size_t peer, bool in_call, AwaitedOf awaited);
  WaitReport OwnReport(bool in_call, std::vector<int> awaited) const;
  static Answer Encode(const WaitReport& here);
  static WaitReport Decode(const Message& message);
  void Send(size_t peer, const Message& message);
  std::string NamesOf(absl::Span<const int> ranks, bool with_last) const;
  absl::Status Report(const absl::Status& timed_out, absl::Span<const int> awaited,
                      const Missing& missing) const;

  const int rank_;
  const std::vector<ControlLine> lines_;
  std::vector<Peer> peers_;
  std::vector<pollfd> polled_;
  CallHeader now_ = {};              // The current call, or the last.
  CallHeader last_collective_ = {};  // The current collective, or the last.
  std::vector<WaitReport> reports_;
  bool has_reason_ = false;
  bool any_silent_ = false;  // Some peer's host has fallen silent.
  std::mutex send_mutex_;
  bool told_ = false;  // Guarded by send_mutex_: nothing follows a reason.
};

}  // namespace dtrain::comm
