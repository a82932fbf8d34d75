#include "comm/transport/control_lines.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/net/socket.h"

namespace dtrain::comm {
namespace {

// How long the reason of a peer that closed its data connection may take to arrive.
constexpr absl::Duration kReasonGrace = absl::Milliseconds(200);

bool IsMessage(const CallHeader& header) {
  return header.kind == CallKind::kSend || header.kind == CallKind::kReceive;
}

template <typename Message>
auto BytesOf(Message& message) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(&message), sizeof(message));
}

}  // namespace

ControlLines::ControlLines(int rank, std::vector<ControlLine> lines)
    : rank_(rank), lines_(std::move(lines)), peers_(lines_.size()), reports_(lines_.size()) {
  for (size_t i = 0; i < lines_.size(); ++i) {
    peers_[i].open = lines_[i].channel != nullptr;
  }
}

void ControlLines::NoteCall(const CallHeader& header) {
  now_ = header;
  if (!IsMessage(header)) {
    last_collective_ = header;
  }
}

void ControlLines::AddDescriptors(std::vector<pollfd>& items) const {
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (peers_[i].open) {
      items.push_back({lines_[i].channel->fd(), POLLIN, 0});
    }
  }
}

WaitReport ControlLines::OwnReport(bool in_call, std::vector<int> awaited) const {
  // Sends and receives have no collective's number: a peer that is awaited in one is awaited now.
  const bool message = in_call && IsMessage(now_);
  return {.answered = true,
          .in_call = in_call,
          .sequence = message ? std::numeric_limits<uint64_t>::max() : last_collective_.sequence,
          .last = last_collective_,
          .awaited = std::move(awaited)};
}

ControlLines::Answer ControlLines::Encode(const WaitReport& here) {
  Answer answer;
  answer.sequence = here.sequence;
  answer.in_call = here.in_call ? 1 : 0;
  answer.last = here.last;
  for (const int rank : here.awaited) {
    const auto bit = static_cast<size_t>(rank);
    if (bit / 8 < sizeof(answer.awaited)) {
      answer.awaited[bit / 8] = static_cast<uint8_t>(answer.awaited[bit / 8] | (1U << (bit % 8)));
    }
  }
  return answer;
}

WaitReport ControlLines::Decode(const Message& message) {
  Answer answer;
  std::memcpy(&answer, message.body, sizeof(answer));
  WaitReport there{.answered = true,
                   .in_call = answer.in_call != 0,
                   .sequence = answer.sequence,
                   .last = answer.last};
  for (size_t bit = 0; bit < 8 * sizeof(answer.awaited); ++bit) {
    if ((answer.awaited[bit / 8] >> (bit % 8) & 1U) != 0) {
      there.awaited.push_back(static_cast<int>(bit));
    }
  }
  return there;
}

void ControlLines::Send(size_t peer, const Message& message) {
  Peer& to = peers_[peer];
  Channel* const channel = lines_[peer].channel;
  if (channel == nullptr) {
    return;
  }
  // The rest of an earlier message goes first. A peer that does not read even that gets no further
  // ones.
  if (to.leaving && !channel->TrySend(BytesOf(to.out)).value_or(false)) {
    return;
  }
  to.out = message;
  to.leaving = !channel->TrySend(BytesOf(to.out)).value_or(false);
}

void ControlLines::Tell(const absl::Status& reason) {
  Message message;
  message.code = static_cast<int32_t>(reason.code());
  const absl::string_view text = reason.message();
  std::memcpy(message.body, text.data(), std::min(text.size(), sizeof(message.body) - 1));
  const std::lock_guard lock(send_mutex_);
  if (!std::exchange(told_, true)) {
    for (size_t peer = 0; peer < lines_.size(); ++peer) {
      Send(peer, message);
    }
  }
}

bool ControlLines::HasTold() {
  const std::lock_guard lock(send_mutex_);
  return told_;
}

absl::Status ControlLines::ReadOne(size_t peer, bool in_call, AwaitedOf awaited) {
  Peer& from = peers_[peer];
  while (from.open) {
    const auto whole = lines_[peer].channel->TryReceive(BytesOf(from.in));
    if (!whole.ok()) {
      from.open = false;  // The data connection reports a process that ended without a reason.
      if (HostFellSilent(whole.status())) {
        from.silence = whole.status();
        any_silent_ = true;
      }
      break;
    }
    if (!*whole) {
      break;
    }
    if (from.in.kind == Kind::kAnswer) {
      reports_[peer] = Decode(from.in);
    } else if (from.in.kind == Kind::kQuestion) {
      Message message;
      message.kind = Kind::kAnswer;
      const Answer answer = Encode(OwnReport(in_call, awaited()));
      std::memcpy(message.body, &answer, sizeof(answer));
      const std::lock_guard lock(send_mutex_);
      if (!told_) {
        Send(peer, message);
      }
    } else {
      has_reason_ = true;
      const absl::string_view text(from.in.body, strnlen(from.in.body, sizeof(from.in.body)));
      return absl::Status(static_cast<absl::StatusCode>(from.in.code),
                          absl::StrCat("reported by ", lines_[peer].name, ": ", text));
    }
  }
  return absl::OkStatus();
}

bool ControlLines::AnythingCame() {
  polled_.clear();
  AddDescriptors(polled_);
  return poll(polled_.data(), polled_.size(), 0) > 0;
}

absl::Status ControlLines::Read(bool in_call, AwaitedOf awaited) {
  if (!AnythingCame()) {
    return absl::OkStatus();
  }
  for (size_t peer = 0; peer < lines_.size(); ++peer) {
    DT_RETURN_IF_ERROR(ReadOne(peer, in_call, awaited));
  }
  return absl::OkStatus();
}

absl::Status ControlLines::ReadBetween() {
  return Read(/*in_call=*/false, [] { return std::vector<int>(); });
}

absl::Status ControlLines::ReadFrom(int peer, AwaitedOf awaited) {
  const auto i = static_cast<size_t>(peer);
  // A rank that has given up by itself has closed the connection, and no reason comes.
  const Deadline grace = Deadline::After(HasTold() ? absl::ZeroDuration() : kReasonGrace);
  while (true) {
    DT_RETURN_IF_ERROR(ReadOne(i, /*in_call=*/true, awaited));
    if (!peers_[i].open || grace.Expired()) {
      return absl::OkStatus();
    }
    pollfd item{lines_[i].channel->fd(), POLLIN, 0};
    poll(&item, 1, grace.PollTimeoutMs());
  }
}

absl::Status ControlLines::NameTheMissing(const absl::Status& timed_out,
                                          absl::Span<const int> awaited,
                                          const WaitContext& context) {
  std::vector<pollfd> items;
  AddDescriptors(items);
  if (has_reason_ || items.empty() || awaited.empty()) {
    return timed_out;
  }
  {
    Message question;
    question.kind = Kind::kQuestion;
    const std::lock_guard lock(send_mutex_);
    for (size_t peer = 0; peer < lines_.size() && !told_; ++peer) {
      Send(peer, question);
    }
  }
  const auto own_awaited = [&] { return std::vector<int>(awaited.begin(), awaited.end()); };
  std::fill(reports_.begin(), reports_.end(), WaitReport());
  reports_[static_cast<size_t>(rank_)] = OwnReport(/*in_call=*/true, own_awaited());
  const Deadline grace = Deadline::After(kAnswerGrace);
  Missing missing = WhoIsMissing(rank_, reports_);
  while (!missing.silent.empty() && !grace.Expired()) {
    items.clear();
    AddDescriptors(items);
    poll(items.data(), items.size(), Earlier(grace, Deadline::After(kWaitSlice)).PollTimeoutMs());
    DT_RETURN_IF_ERROR(context.interrupted());
    DT_RETURN_IF_ERROR(Read(/*in_call=*/true, own_awaited));
    missing = WhoIsMissing(rank_, reports_);
  }
  return Report(timed_out, awaited, missing);
}

std::string ControlLines::NamesOf(absl::Span<const int> ranks, bool with_last) const {
  std::string text;
  for (const int rank : ranks) {
    const auto i = static_cast<size_t>(rank);
    absl::StrAppend(&text, text.empty() ? "" : "; ", lines_[i].name);
    if (with_last && reports_[i].last.sequence == 0) {
      absl::StrAppend(&text, ", which has called nothing yet");
    } else if (with_last) {
      absl::StrAppend(&text, ", last seen at collective ", reports_[i].last.sequence, " (",
                      Describe(reports_[i].last), ")");
    }
  }
  return text;
}

absl::Status ControlLines::Report(const absl::Status& timed_out, absl::Span<const int> awaited,
                                  const Missing& missing) const {
  if (missing.none()) {
    return absl::DeadlineExceededError(
        absl::StrCat(timed_out.message(),
                     "; the ranks answer, and nobody is missing: a rank or a link is too slow for "
                     "this limit"));
  }
  const std::string elsewhere = absl::StrCat(
      NamesOf(missing.elsewhere, /*with_last=*/true), ": ",
      missing.elsewhere.size() == 1 ? "it answers" : "they answer", " from outside of collectives");
  if (missing.silent.empty()) {
    return absl::DeadlineExceededError(absl::StrCat("timed out waiting for ", elsewhere));
  }
  // If the silent ranks are just those awaited, the wait's own message may say more about them.
  const bool as_awaited = std::is_permutation(awaited.begin(), awaited.end(),
                                              missing.silent.begin(), missing.silent.end());
  return absl::DeadlineExceededError(absl::StrCat(
      as_awaited ? std::string(timed_out.message())
                 : absl::StrCat("timed out waiting for ", NamesOf(missing.silent, false)),
      ": nothing was heard of ", missing.silent.size() == 1 ? "it" : "them", " for ",
      absl::FormatDuration(kAnswerGrace), missing.elsewhere.empty() ? "" : "; and for ",
      missing.elsewhere.empty() ? "" : elsewhere));
}

}  // namespace dtrain::comm
