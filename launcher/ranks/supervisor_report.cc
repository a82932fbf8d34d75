// What a supervisor tells of its attempt: how its ranks are, to those who ask; and, if it failed,
// why to the other nodes, on the console and in a report.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/system/cgroup.h"
#include "base/text/text.h"
#include "launcher/ranks/supervisor.h"
#include "launcher/records/file_tail.h"
#include "launcher/records/kernel_log.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kReportLines = 15;
constexpr size_t kRemainsLines = 200;
constexpr size_t kKernelMessages = 20;
// Ranks of other nodes that an answer has: a datagram takes about 200 KB.
constexpr size_t kOthersDescribed = 1000;

// The ranks of other nodes, as those have last said: `dtrain status` needs them if they do not
// answer themselves.
Json OthersJson(const std::vector<RankView>& views) {
  Json others = Json::array();
  for (const RankView& view : views) {
    if (others.size() == kOthersDescribed) {
      break;
    }
    others.push_back({{"rank", view.rank},
                      {"alive", !view.has_ended},
                      {"step", view.step},
                      {"phase", view.phase},
                      {"beat_age_s", view.silent_s}});
  }
  return others;
}

}  // namespace

std::string Supervisor::Describe() const {
  const int64_t now = Clock::Real().MonotonicNanos();
  const std::vector<int> alive = processes_.AliveRanks();
  Json ranks = Json::array();
  for (const auto& [rank, state] : ranks_) {
    Json row = {{"rank", rank},
                {"alive", std::find(alive.begin(), alive.end(), rank) != alive.end()},
                {"step", state.step},
                {"phase", state.phase}};
    if (state.beat_nanos > 0) {
      row["beat_age_s"] = static_cast<double>(now - state.beat_nanos) * 1e-9;
    }
    ranks.push_back(std::move(row));
  }
  const char* const phase = phase_ != Phase::kRunning  ? "ending"
                            : result_.stop.signal != 0 ? "stopping"
                                                       : "running";
  return DumpJson({{"attempt", attempt_.shape.attempt},
                   {"world_size", attempt_.shape.world_size()},
                   {"phase", phase},
                   {"ranks", std::move(ranks)},
                   {"others", OthersJson(watch_.OtherViews(now))}});
}

// The ranks of the other nodes would wait for those that do not come.
void Supervisor::PublishStartError() {
  const JobShape& shape = attempt_.shape;
  parts_.peers.Publish(
      CannotStartOrder(shape.node_rank, shape.first_rank(), attempt_.host, result_.error));
}

void Supervisor::Report() {
  const RankEnd* const cause = RootCause(result_.ends, result_.stop);
  if (cause != nullptr) {
    ReportCause(*cause);
  }
  if (cause != nullptr || !result_.error.ok()) {
    WriteReport(cause);
  }
}

void Supervisor::ReportCause(const RankEnd& cause) {
  Reporter& reporter = parts_.reporter;
  reporter.Show({});  // The ranks' own output is shown before the report about them.
  if (const std::string line = DescribeFailure(cause); line != announced_) {
    reporter.Say(absl::StrCat("root cause: ", line));
  }
  if (!cause.error.empty() && cause.hang.empty() && !SaidAbove(cause.error)) {
    reporter.SayMore(absl::StrCat("  it said: ", cause.error));
  }
  if (const RankEnd* const leaver = EarlyLeaver(result_.ends, cause)) {
    reporter.SayMore(
        absl::StrFormat("  before that, rank %d ended with exit code 0 while others were still "
                        "training; if it left its loop early, that is the cause",
                        leaver->rank));
  }
  const std::vector<int>& shown = attempt_.err_shown;
  // The console may not have shown all of a file that was begun anew.
  if (std::find(shown.begin(), shown.end(), cause.rank) != shown.end() &&
      !FileExists(KeptPath(cause.log))) {
    reporter.SayMore(absl::StrCat("  its stderr, shown above: ", cause.log));
    return;
  }
  if (!ranks_.contains(cause.rank)) {  // Its own node shows the lines.
    if (!cause.log.empty()) {
      reporter.SayMore(absl::StrCat("  its stderr, on host ", cause.host, ": ", cause.log));
    }
    return;
  }
  const std::vector<std::string> lines = LogLines(cause.rank, cause.log, kReportLines);
  reporter.SayMore(absl::StrCat("  its stderr: ", cause.log, lines.empty() ? " (empty)" : ""));
  for (const std::string& line : LinesWithout(lines, cause.error)) {
    reporter.SayMore(absl::StrCat("    | ", line));
  }
}

RankRemains Supervisor::RemainsOf(int rank, const std::vector<RankView>& views) {
  RankRemains remains{.rank = rank};
  for (const std::string& line :
       LogLines(rank, LogPath(attempt_.log_dir, rank, "err"), kRemainsLines)) {
    remains.stderr_lines.push_back(Printable(line));
  }
  if (const auto places = places_.find(rank); places != places_.end()) {
    remains.threads = places->second;
  }
  for (const RankView& view : views) {
    if (view.rank == rank) {
      remains.progress = view.groups;
    }
  }
  return remains;
}

// A failed attempt leaves a report, whatever its disk thinks of it.
void Supervisor::WriteReport(const RankEnd* cause) {
  const JobShape& shape = attempt_.shape;
  const PostMortemPlace place{
      .run_dir = shape.run_dir, .log_dir = attempt_.log_dir, .started = started_};
  PostMortemFacts facts{.run_id = shape.run_id,
                        .attempt = shape.attempt,
                        .node = shape.node_rank,
                        .world_size = shape.world_size(),
                        .exit_code = ExitCodeOf(result_),
                        .time = Clock::Real().WallTime(),
                        .error = result_.error,
                        .ends = result_.ends};
  if (cause != nullptr) {
    facts.cause = &facts.ends[static_cast<size_t>(cause - result_.ends.data())];
  }
  const std::vector<RankView> views = watch_.LocalViews();
  for (const auto& [rank, state] : ranks_) {
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
    parts_.reporter.SayMore(absl::StrCat("  ", why));
  }
  const absl::StatusOr<std::string> path = WritePostMortem(place, facts);
  parts_.reporter.SayMore(path.ok()
                              ? absl::StrCat("  report: ", *path)
                              : absl::StrCat("  no report was written: ", path.status().message()));
}

// The last lines of a rank's stderr in this attempt; none if the log is on another node.
std::vector<std::string> Supervisor::LogLines(int rank, const std::string& path,
                                              size_t lines_max) const {
  const auto state = ranks_.find(rank);
  return state == ranks_.end() ? std::vector<std::string>()
                               : LastLines(path, state->second.err_from, lines_max);
}

// Whether a rank whose stderr is on the console has printed `error` already: the cause itself, or
// one that was told why another cannot start.
bool Supervisor::SaidAbove(const std::string& error) const {
  return std::any_of(attempt_.err_shown.begin(), attempt_.err_shown.end(), [&](int rank) {
    const auto lines = LogLines(rank, LogPath(attempt_.log_dir, rank, "err"), kReportLines);
    return LinesWithout(lines, error).size() < lines.size();
  });
}

}  // namespace dtrain::launcher
