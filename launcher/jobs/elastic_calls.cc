#include "launcher/jobs/elastic_calls.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/deadline.h"
#include "base/status.h"
#include "launcher/attempt_meeting.h"

namespace dtrain::launcher {
namespace {

constexpr absl::Duration kLookTime = absl::Milliseconds(500);  // At what the lobby has already.

}  // namespace

void ElasticCalls::SetLobby(std::shared_ptr<LobbyAgent> lobby) {
  const std::lock_guard lock(mutex_);
  lobby_ = std::move(lobby);
}

void ElasticCalls::SetAttempt(std::optional<AskedAttempt> attempt) {
  const std::lock_guard lock(mutex_);
  attempt_ = std::move(attempt);
}

void ElasticCalls::Drain(const ControlCall& call) {
  constexpr absl::Duration kAnswerTime = absl::Seconds(10);
  constexpr absl::Duration kDrainSlice = absl::Milliseconds(100);
  constexpr char kDrain[] = "drain ";
  if (!absl::StartsWith(call.request, kDrain)) {
    call.reply("no such request");
    return;
  }
  const std::shared_ptr<LobbyAgent> lobby = [this] {
    const std::lock_guard lock(mutex_);
    return lobby_;
  }();
  if (lobby == nullptr) {
    call.reply("no the coordinator is lost");
    return;
  }
  LobbyMessage message{.kind = LobbyMessage::Kind::kDrain};
  message.target = std::string(absl::StripPrefix(call.request, kDrain));
  const absl::Status posted = lobby->Post(std::move(message));
  const absl::StatusOr<LobbyOrder> answer =
      posted.ok() ? lobby->AwaitAnswer(kAnswerTime) : absl::StatusOr<LobbyOrder>(posted);
  if (!answer.ok() || answer->code != kExitOk || answer->names.size() < 2) {
    call.reply(
        absl::StrCat("no ", answer.ok() ? answer->text : std::string(answer.status().message())));
    return;
  }
  call.reply(absl::StrCat("ok ", answer->text));
  while (true) {
    const absl::Status left = lobby->AwaitDismissal(answer->names[1], kDrainSlice);
    if (!absl::IsDeadlineExceeded(left) || call.is_stopping()) {
      call.reply(left.ok() ? "left" : absl::StrCat("no ", left.message()));
      return;
    }
  }
}

AskedAttempt ElasticCalls::AttemptOf(const LobbyNodes& members, LobbyAgent& lobby) const {
  AskedAttempt attempt{.number = members.attempt};
  for (const LobbyNodes::Row& row : members.rows) {
    if (row.place == static_cast<int>(attempt.nodes.size())) {
      attempt.nodes.push_back(row.node);
    }
  }
  const LobbyMemory memory = lobby.memory();
  const bool is_known = memory.attempt.has_value() && memory.attempt->attempt == members.attempt;
  const int64_t term = is_known ? memory.attempt->term : memory.term;
  const auto text = lobby.Ask(MeetingKey(term, members.attempt), Deadline::After(kLookTime));
  const absl::StatusOr<Meeting> meeting = text.ok() ? ParseMeeting(*text, host_) : text.status();
  if (meeting.ok()) {
    attempt.store = meeting->store;
  }
  return attempt;
}

JobNodes ElasticCalls::Nodes() {
  std::shared_ptr<LobbyAgent> lobby;
  std::optional<AskedAttempt> attempt;
  {
    const std::lock_guard lock(mutex_);
    lobby = lobby_;
    attempt = attempt_;
  }
  LobbyNodes members;
  std::string note = "the job's coordinator is lost, so that nodes without ranks are not shown";
  if (lobby != nullptr) {
    const auto text = lobby->Ask(kLobbyNodesKey, Deadline::After(kLookTime));
    absl::StatusOr<LobbyNodes> told = text.ok() ? LobbyNodes::Parse(*text) : text.status();
    if (told.ok()) {
      members = *std::move(told);
      note.clear();
    }
  }
  if (!attempt.has_value() && lobby != nullptr && members.attempt >= 0) {
    attempt = AttemptOf(members, *lobby);
  }
  JobNodes job = attempt.has_value() ? AskNodes(*attempt, key_) : JobNodes{};
  AddMembers(members, job);
  job.note = job.note.empty() ? note : job.note;
  return job;
}

}  // namespace dtrain::launcher
