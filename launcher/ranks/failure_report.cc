#include "launcher/ranks/failure_report.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text/text.h"
#include "launcher/records/file_tail.h"
#include "launcher/records/kernel_log.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kReportLines = 15;
constexpr size_t kRemainsLines = 200;
constexpr size_t kKernelMessages = 20;
constexpr size_t kThreadsReported = 32;

}  // namespace

FailureReport::FailureReport(const Attempt& attempt, Reporter& reporter)
    : attempt_(attempt), reporter_(reporter), started_(Clock::Real().WallTime()) {}

void FailureReport::RankStarts(int rank) {
  ranks_[rank].err_from = FileEnd(attempt_.LogPath(rank, "err"));
}

// Where the threads are is seen from outside; what they run, ranks with dtrain's handler write.
void FailureReport::AskStacks(const std::vector<RankView>& views) {
  for (const RankView& view : views) {
    const auto traces = ranks_.find(view.rank);
    if (!view.has_ended && traces != ranks_.end()) {
      traces->second.threads = PlacesOfThreads(view.pid, kThreadsReported);
      syscall(SYS_tgkill, view.pid, view.pid, SIGUSR2);
    }
  }
}

void FailureReport::Tell(const AttemptResult& result, const std::string& said,
                         const std::vector<RankView>& views) const {
  const RankEnd* const cause = RootCause(result.ends, result.stop);
  if (cause != nullptr) {
    SayCause(result, *cause, said);
  }
  if (cause != nullptr || !result.error.ok()) {
    Write(result, cause, views);
  }
}

void FailureReport::SayCause(const AttemptResult& result, const RankEnd& cause,
                             const std::string& said) const {
  reporter_.Show({});  // The ranks' own output is shown before the report about them.
  if (const std::string line = DescribeFailure(cause); line != said) {
    reporter_.Say(absl::StrCat("root cause: ", line));
  }
  if (!cause.error.empty() && cause.hang.empty() && !IsShown(cause.error)) {
    reporter_.SayMore(absl::StrCat("  it said: ", cause.error));
  }
  if (const RankEnd* const leaver = EarlyLeaver(result.ends, cause)) {
    reporter_.SayMore(
        absl::StrFormat("  before that, rank %d ended with exit code 0 while others were still "
                        "training; if it left its loop early, that is the cause",
                        leaver->rank));
  }
  const std::vector<int>& shown = attempt_.err_shown;
  // The console may not have shown all of a file that was begun anew.
  if (std::find(shown.begin(), shown.end(), cause.rank) != shown.end() &&
      !FileExists(KeptPath(cause.log))) {
    reporter_.SayMore(absl::StrCat("  its stderr, shown above: ", cause.log));
    return;
  }
  if (!ranks_.contains(cause.rank)) {  // Its own node shows the lines.
    if (!cause.log.empty()) {
      reporter_.SayMore(absl::StrCat("  its stderr, on host ", cause.host, ": ", cause.log));
    }
    return;
  }
  const std::vector<std::string> lines = LogLines(cause.rank, cause.log, kReportLines);
  reporter_.SayMore(absl::StrCat("  its stderr: ", cause.log, lines.empty() ? " (empty)" : ""));
  for (const std::string& line : LinesWithout(lines, cause.error)) {
    reporter_.SayMore(absl::StrCat("    | ", line));
  }
}

RankRemains FailureReport::RemainsOf(int rank, const std::vector<RankView>& views) const {
  RankRemains remains{.rank = rank};
  remains.threads = ranks_.at(rank).threads;
  for (const std::string& line : LogLines(rank, attempt_.LogPath(rank, "err"), kRemainsLines)) {
    remains.stderr_lines.push_back(Printable(line));
  }
  for (const RankView& view : views) {
    if (view.rank == rank) {
      remains.progress = view.groups;
    }
  }
  return remains;
}

// A failed attempt leaves a report, whatever its disk thinks of it.
void FailureReport::Write(const AttemptResult& result, const RankEnd* cause,
                          const std::vector<RankView>& views) const {
  const JobShape& shape = attempt_.shape;
  const PostMortemPlace place{
      .run_dir = shape.run_dir, .log_dir = attempt_.log_dir, .started = started_};
  PostMortemFacts facts{.run_id = shape.run_id,
                        .attempt = shape.attempt,
                        .node = shape.node_rank,
                        .world_size = shape.world_size(),
                        .exit_code = ExitCodeOf(result),
                        .time = Clock::Real().WallTime(),
                        .error = result.error,
                        .ends = result.ends};
  if (cause != nullptr) {
    facts.cause = &facts.ends[static_cast<size_t>(cause - result.ends.data())];
  }
  for (const auto& [rank, traces] : ranks_) {
    facts.ranks.push_back(RemainsOf(rank, views));
    ReadRemains(place, shape.attempt, facts.ranks.back());
  }
  const absl::StatusOr<std::string> kernel =
      ReadKernelRing(facts.time - started_ + absl::Seconds(5));
  if (kernel.ok()) {
    facts.kernel = KernelMessagesIn(*kernel, kKernelMessages);
  } else {
    facts.kernel_unreadable = std::string(kernel.status().message());
  }
  facts.oom_kills = OomKills().value_or(oom_kills_before_) - oom_kills_before_;
  if (const std::string why = WhyKilled(facts); !why.empty()) {
    reporter_.SayMore(absl::StrCat("  ", why));
  }
  const absl::StatusOr<std::string> path = WritePostMortem(place, facts);
  reporter_.SayMore(path.ok() ? absl::StrCat("  report: ", *path)
                              : absl::StrCat("  no report was written: ", path.status().message()));
}

// The last lines of a rank's stderr in this attempt; none if the log is on another node.
std::vector<std::string> FailureReport::LogLines(int rank, const std::string& path,
                                                 size_t lines_max) const {
  const auto traces = ranks_.find(rank);
  return traces == ranks_.end() ? std::vector<std::string>()
                                : LastLines(path, traces->second.err_from, lines_max);
}

// Whether a rank whose stderr is on the console has printed `error` already: the cause itself, or
// one that was told why another cannot start.
bool FailureReport::IsShown(const std::string& error) const {
  return std::any_of(attempt_.err_shown.begin(), attempt_.err_shown.end(), [&](int rank) {
    const auto lines = LogLines(rank, attempt_.LogPath(rank, "err"), kReportLines);
    return LinesWithout(lines, error).size() < lines.size();
  });
}

}  // namespace dtrain::launcher
