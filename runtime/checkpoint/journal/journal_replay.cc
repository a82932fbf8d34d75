#include "runtime/checkpoint/journal/journal_replay.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/journal/journal.h"
#include "checkpoint/journal/mend_segments.h"
#include "runtime/checkpoint/journal/journal_gradient.h"
#include "runtime/checkpoint/journal/journal_record.h"
#include "runtime/checkpoint/journal/step_journal.h"

namespace dtrain {
namespace {

// A rank says this in place of a step when it has dropped a copy.
constexpr char kMended[] = "mended";

// The journal as one rank sees it, and what the rank says of its share.
struct Share {
  std::optional<checkpoint::Journal> journal;
  int64_t last = 0;  // The step to which the share is whole.
  std::string said;
};

// Reads this rank's share of the journal and compares it with its checksums.
absl::StatusOr<Share> VerifyShare(const ReplayFrom& from, bool may_mend) {
  const int rank = from.exchange.rank();
  const int world_size = from.exchange.world_size();
  Share share;
  DT_ASSIGN_OR_RETURN(share.journal, checkpoint::Journal::Open(from.storage, from.checkpoint));
  share.last = share.journal->Verify(rank, world_size);
  share.said = absl::StrCat(share.last);
  if (may_mend && (share.last < share.journal->last() || !share.journal->is_whole())) {
    const auto mended = checkpoint::MendSegments(from.storage, from.checkpoint, rank, world_size);
    if (!mended.ok()) {
      DT_LOG(Warning) << "the journal's copies cannot be compared: " << mended.status().message();
    }
    share.said = mended.value_or(true) ? kMended : share.said;
  }
  return share;
}

// Collective: the journal, on rank 0 up to the step to which all have found their shares whole. All
// open it anew where a rank has dropped a damaged copy of a file for another one.
absl::StatusOr<checkpoint::Journal> OpenVerified(const ReplayFrom& from) {
  for (bool may_mend = from.storage.may_hold_copies();; may_mend = false) {
    absl::StatusOr<Share> share = absl::InternalError("the journal was not read");
    DT_RETURN_IF_ERROR(from.exchange.Together(
        [&] {
          share = VerifyShare(from, may_mend);
          return share.status();
        },
        from.timeout));
    DT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        from.exchange.Gather(share->said, Deadline::After(from.timeout)));
    int64_t last = share->last;
    for (const std::string& text : all) {  // Empty on all ranks but rank 0.
      int64_t other = 0;
      last = std::min(last, absl::SimpleAtoi(text, &other) ? other : from.checkpoint.step);
    }
    const bool any = std::find(all.begin(), all.end(), kMended) != all.end();
    DT_ASSIGN_OR_RETURN(const std::string again,
                        from.exchange.Broadcast(any ? kMended : "", Deadline::After(from.timeout)));
    if (again.empty()) {
      share->journal->CutTo(last);
      return *std::move(share->journal);
    }
  }
}

// Collective: the journal up to the step to which all ranks can replay, by rank 0's choice among
// what each of them has verified.
absl::StatusOr<checkpoint::Journal> OpenAgreed(const ReplayFrom& from) {
  DT_ASSIGN_OR_RETURN(checkpoint::Journal journal, OpenVerified(from));
  DT_ASSIGN_OR_RETURN(
      const std::string chosen,
      from.exchange.Broadcast(absl::StrCat(journal.last()), Deadline::After(from.timeout)));
  int64_t last = 0;
  if (!absl::SimpleAtoi(chosen, &last)) {
    return absl::InternalError(absl::StrCat("rank 0 chose \"", chosen, "\" as the journal's end"));
  }
  journal.CutTo(last);
  if (journal.last() != last) {
    return absl::UnavailableError(absl::StrFormat(
        "rank 0 reads the journal up to step %d, this rank up to step %d: all ranks must see the "
        "same files in %s",
        last, journal.last(), from.storage.DisplayName(checkpoint::kJournalFolder)));
  }
  return journal;
}

// "optimizer.params.lr was 0.1, now 0.2"; "": they are equal.
std::string Difference(const std::string& path, const Json& was, const Json& now) {
  if (was == now) {
    return "";
  }
  if (was.is_object() && now.is_object()) {
    for (const auto& [key, value] : was.items()) {
      const auto other = now.find(key);
      const std::string inner = path.empty() ? key : absl::StrCat(path, ".", key);
      if (std::string found = Difference(inner, value, other == now.end() ? Json() : *other);
          !found.empty()) {
        return found;
      }
    }
  }
  return absl::StrFormat("%s was %s, now %s", path.empty() ? "a setting" : path, DumpJson(was),
                         DumpJson(now));
}

absl::Status CheckSettings(const checkpoint::Journal& journal, const ReplayFrom& from,
                           const Config& config) {
  const Json now = UpdateSettings(config);
  const int64_t lost = journal.last() - from.checkpoint.step;
  for (int64_t step = from.checkpoint.step + 1; step <= journal.last(); ++step) {
    const std::string other = Difference("", journal.FilesOf(step)[0]->header().settings, now);
    if (!other.empty()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "steps %d to %d are in the journal alone, and were taken with other settings: %s. Resume "
          "with the former value and stop the run behind a checkpoint before you change it, or "
          "remove %s to go on from step %d, which loses %d step%s",
          step, journal.last(), other, from.storage.DisplayName(checkpoint::kJournalFolder),
          from.checkpoint.step, lost, lost == 1 ? "" : "s"));
    }
  }
  return absl::OkStatus();
}

// Collective: ReadGradient on all ranks, none of which goes on before all have read. So their
// updates begin together, and a rank that waits for a slower one waits for a step at most.
absl::Status ReadTogether(const ReplayFrom& from, const EngineState& state,
                          const checkpoint::Journal::Files& files, int64_t step,
                          const GradientMemory& gradient) {
  DT_RETURN_IF_ERROR(ReadGradient(state, files, step, gradient));
  return from.exchange.Gather(absl::StrCat(step), Deadline::After(from.timeout)).status();
}

// The file of this rank, or rank 0's where another number of ranks wrote it.
size_t OwnFile(const checkpoint::Journal::Files& files, const RankPlace& place) {
  return static_cast<int>(files.size()) == place.world_size ? static_cast<size_t>(place.rank) : 0;
}

}  // namespace

absl::StatusOr<Replayed> ReplayJournal(const ReplayFrom& from, const Config& config,
                                       absl::Span<const NamedTensor> tensors, RankPlace place,
                                       Engine& engine) {
  Replayed replayed;
  DT_ASSIGN_OR_RETURN(const checkpoint::Journal journal, OpenAgreed(from));
  const int64_t last = journal.last();
  if (last == from.checkpoint.step) {
    return replayed;
  }
  DT_RETURN_IF_ERROR(from.exchange.Together(
      [&] {
        checkpoint::KeepSegments(from.storage, journal.segments(), from.exchange.rank(),
                                 from.exchange.world_size());
        return absl::OkStatus();
      },
      from.timeout));
  EngineState& state = engine.state();
  DT_RETURN_IF_ERROR(CheckSettings(journal, from, config));
  for (int64_t step = from.checkpoint.step + 1; step <= last; ++step) {
    const checkpoint::Journal::Files& files = journal.FilesOf(step);
    const checkpoint::SegmentReader& own = *files[OwnFile(files, place)];
    DT_ASSIGN_OR_RETURN(const auto text, own.ReadText(step));
    DT_ASSIGN_OR_RETURN(const StepEnd end, ParseStepEnd(step, text.end));
    // A rank may have no part of a model that is smaller than the world.
    if (own.header().gradient_bytes() > 0 && end.updates() != own.has_gradient(step)) {
      return absl::DataLossError(
          absl::StrFormat("the journal's record of step %d does not fit its gradient", step));
    }
    DT_RETURN_IF_ERROR(Annotate(engine.Replay(end,
                                              [&](const GradientMemory& gradient) {
                                                return ReadTogether(from, state, files, step,
                                                                    gradient);
                                              }),
                                absl::StrFormat("replay of step %d", step)));
    ++replayed.steps;
  }
  const checkpoint::Journal::Files& files = journal.FilesOf(last);
  DT_ASSIGN_OR_RETURN(checkpoint::AfterStep own, files[OwnFile(files, place)]->ReadAfter(last));
  DT_ASSIGN_OR_RETURN(const checkpoint::AfterStep of_rank0, files[0]->ReadAfter(last));
  DT_ASSIGN_OR_RETURN(replayed.buffers, RestoreAfter(own, of_rank0, tensors, state));
  replayed.tracked = std::move(own.state["tracked"]);
  return replayed;
}

}  // namespace dtrain
