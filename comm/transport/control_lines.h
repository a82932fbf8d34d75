// The second connection to each peer, silent while all goes well: over it a rank that gives up says
// why, and a rank whose time is over asks the others whom they wait for, so that it names the one
// that is missing and not the one in between.
//
// Messages are few and small, and never wait: what does not fit into the socket of a peer that
// reads nothing is dropped. One thread at a time reads and asks; Tell may come from any.
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

// How long a rank whose time is over waits for what the others say. Longer than kWatchPeriod: a
// rank that is in no call answers from its watchdog.
inline constexpr absl::Duration kAnswerGrace = absl::Seconds(1);

struct ControlLine {
  Channel* channel = nullptr;  // Null: none, as to this rank itself. Outlives the lines.
  std::string name = {};       // "rank 1 (node a, pid 12)".
};

class ControlLines {
 public:
  // Whom the call at hand waits for now, as ranks.
  using AwaitedOf = absl::FunctionRef<std::vector<int>()>;

  ControlLines(int rank, std::vector<ControlLine> lines);

  // The call that is run from now on, or was the last.
  void NoteCall(const CallHeader& header);
  // What to poll: all that may bring a message.
  void AddDescriptors(std::vector<pollfd>& items) const;
  // Not OK: the line to `peer` broke because its host answered nothing any more. Connections for
  // data do not tell that (net/socket.h), so this line decides.
  bool any_silent() const { return any_silent_; }
  const absl::Status& silence_of(int peer) const {
    return peers_.at(static_cast<size_t>(peer)).silence;
  }
  // What some peer gave as its reason, or OK. Answers who asks. ReadBetween: this rank is in no
  // call.
  absl::Status Read(AwaitedOf awaited) { return Read(/*in_call=*/true, awaited); }
  absl::Status ReadBetween();
  // The same, waiting a moment for `peer` to say something, because it closed its data connection.
  absl::Status ReadFrom(int peer, AwaitedOf awaited);
  // This rank's time is over while it waits for `awaited`. Asks all others, waits for what they say
  // until the cause is known, at most kAnswerGrace, and gives DeadlineExceeded with the ranks that
  // are missing; or a reason that comes meanwhile; or `timed_out`, where nobody can be asked or
  // that is what a peer said.
  absl::Status NameTheMissing(const absl::Status& timed_out, absl::Span<const int> awaited,
                              const WaitContext& context);
  // Tells the peers that this rank gives up. Any thread.
  void Tell(const absl::Status& reason);

 private:
  enum class Kind : int32_t { kReason, kQuestion, kAnswer };
  // As it travels.
  struct Message {
    Kind kind = Kind::kReason;
    int32_t code = 0;
    char body[1016] = {};  // A reason's text, or an Answer.
  };
  struct Answer {
    uint64_t sequence = 0;
    uint64_t in_call = 0;
    CallHeader last = {};
    uint8_t awaited[872] = {};  // A bit a rank; further ones are left out.
  };
  static_assert(sizeof(Answer) == sizeof(Message::body));
  struct Peer {
    bool open = false;
    absl::Status silence = {};  // Not OK: its host fell silent.
    Message in = {};            // Being received.
    Message out = {};
    bool leaving = false;  // `out` is sent in part.
  };

  // One system call for all lines, where reading takes one each: waits look many times a second.
  bool AnythingCame();
  absl::Status Read(bool in_call, AwaitedOf awaited);
  absl::Status ReadOne(size_t peer, bool in_call, AwaitedOf awaited);
  Whereabouts Here(bool in_call, std::vector<int> awaited) const;
  static Answer Encode(const Whereabouts& here);
  static Whereabouts Decode(const Message& message);
  void Send(size_t peer, const Message& message);
  std::string NamesOf(absl::Span<const int> ranks, bool with_last) const;
  absl::Status Report(const absl::Status& timed_out, absl::Span<const int> awaited,
                      const Missing& missing) const;

  const int rank_;
  const std::vector<ControlLine> lines_;
  std::vector<Peer> peers_;
  std::vector<pollfd> polled_;
  CallHeader now_ = {};              // The call at hand, or the last.
  CallHeader last_collective_ = {};  // The last of all, or that at hand.
  std::vector<Whereabouts> said_;
  bool heard_reason_ = false;
  bool any_silent_ = false;  // Some peer's host is.
  std::mutex send_mutex_;
  bool told_ = false;  // Guarded by send_mutex_: nothing follows a reason.
};

}  // namespace dtrain::comm
