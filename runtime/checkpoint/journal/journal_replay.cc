#include "runtime/checkpoint/journal/journal_replay.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

// Collective: reads this rank's share of the journal and compares it with its checksums. All open
// it anew where a rank has dropped a damaged copy of a file for another one. Gives on rank 0 the
// step to which all have found it whole.
absl::StatusOr<int64_t> VerifyShares(checkpoint::Journal& journal, const ReplayFrom& from) {
  const int rank = from.exchange.rank();
  const int world_size = from.exchange.world_size();
  for (bool may_mend = from.storage.may_hold_copies();; may_mend = false) {
    const int64_t mine = journal.Verify(rank, world_size);
    std::string said = absl::StrCat(mine);
    if (may_mend && (mine < journal.last() || !journal.is_whole())) {
      const auto mended = checkpoint::MendSegments(from.storage, from.checkpoint, rank, world_size);
      if (!mended.ok()) {
        DT_LOG(Warning) << "the journal's copies cannot be compared: " << mended.status().message();
      }
      said = mended.value_or(true) ? kMended : said;
    }
    DT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        from.exchange.Gather(said, from.deadline));
    int64_t last = mine;
    for (const std::string& text : all) {  // Empty on all ranks but rank 0.
      int64_t other = 0;
      last = std::min(last, absl::SimpleAtoi(text, &other) ? other : from.checkpoint.step);
    }
    const bool any = std::find(all.begin(), all.end(), kMended) != all.end();
    DT_ASSIGN_OR_RETURN(const std::string again,
                        from.exchange.Broadcast(any ? kMended : "", from.deadline));
    if (again.empty()) {
      return last;
    }
    DT_ASSIGN_OR_RETURN(journal, checkpoint::Journal::Open(from.storage, from.checkpoint));
  }
}

// Collective: the step to which all ranks can replay, by rank 0's choice among what each of them
// has verified.
absl::StatusOr<int64_t> AgreeOnLast(checkpoint::Journal& journal, const ReplayFrom& from) {
  DT_ASSIGN_OR_RETURN(int64_t last, VerifyShares(journal, from));
  journal.CutTo(last);
  DT_ASSIGN_OR_RETURN(const std::string chosen,
                      from.exchange.Broadcast(absl::StrCat(journal.last()), from.deadline));
  if (!absl::SimpleAtoi(chosen, &last)) {
    return absl::InternalError(absl::StrCat("rank 0 chose \"", chosen, "\" as the journal's end"));
  }
  journal.CutTo(last);
  return journal.last() == last
             ? absl::StatusOr<int64_t>(last)
             : absl::UnavailableError(absl::StrFormat(
                   "rank 0 reads the journal up to step %d, this rank up to step %d: all ranks "
                   "must see the same files in %s",
                   last, journal.last(), from.storage.DisplayName(checkpoint::kJournalFolder)));
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

// The file of this rank, or rank 0's where another number of ranks wrote it.
size_t OwnFile(const checkpoint::Journal::Files& files, const RankPlace& place) {
  return static_cast<int>(files.size()) == place.world_size ? static_cast<size_t>(place.rank) : 0;
}

}  // namespace

absl::StatusOr<Replayed> ReplayJournal(const ReplayFrom& from, const Config& config,
                                       absl::Span<const NamedTensor> tensors, RankPlace place,
                                       Engine& engine) {
  Replayed replayed;
  DT_ASSIGN_OR_RETURN(checkpoint::Journal journal,
                      checkpoint::Journal::Open(from.storage, from.checkpoint));
  DT_ASSIGN_OR_RETURN(const int64_t last, AgreeOnLast(journal, from));
  if (last == from.checkpoint.step) {
    return replayed;
  }
  checkpoint::KeepSegments(from.storage, journal.segments(), from.exchange.rank(),
                           from.exchange.world_size());
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
                                                return ReadGradient(state, files, step, gradient);
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
