#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/console/command_line.h"
#include "base/console/record_line.h"
#include "base/console/run_console.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text/text.h"
#include "launcher/commands/commands.h"
#include "launcher/hosts/ssh_command.h"
#include "launcher/jobs/job_registry.h"
#include "launcher/jobs/job_view.h"
#include "launcher/records/attempt_logs.h"
#include "launcher/records/file_tail.h"

namespace dtrain::launcher {
namespace {

struct LogsOptions {
  std::string run_dir;
  std::string log_dir;  // "": the run directory's.
  int rank = -1;
  int lines = 10;
  bool follow = false;
};

struct Output {
  std::string prefix;
  FileTail tail;
};

// The folder of the newest attempt.
absl::StatusOr<std::string> LogFolder(const LogsOptions& options) {
  const std::string logs = options.log_dir.empty() ? options.run_dir + "/logs" : options.log_dir;
  const std::optional<int> newest = NewestAttempt(logs);
  if (!newest.has_value()) {
    return absl::NotFoundError(absl::StrFormat(
        "no logs in %s (expected %s); is it a run directory? If its job was started with --log-dir "
        "DIR, give the same here",
        options.log_dir.empty() ? options.run_dir : options.log_dir, AttemptFolder(logs, 0)));
  }
  return AttemptFolder(logs, *newest);
}

// rank-R.out and rank-R.err, in the order of ranks.
std::vector<std::pair<int, std::string>> LogFiles(const std::string& log_dir, int only) {
  std::vector<std::pair<int, std::string>> files;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(log_dir, ignored)) {
    const std::string name = entry.path().filename();
    int rank = 0;
    const bool is_log = absl::EndsWith(name, ".out") || absl::EndsWith(name, ".err");
    if (is_log && absl::StartsWith(name, "rank-") &&
        absl::SimpleAtoi(name.substr(5, name.size() - 9), &rank) && (only < 0 || only == rank)) {
      files.emplace_back(rank, entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// A "config" record with the columns of the run's progress line; without settings if
// RUN_DIR/config.json has none. The run's own record of them may be far above the last lines.
Json SettingsOf(const std::string& run_dir) {
  const std::string path = run_dir + "/config.json";
  const auto text = ReadFile(path);
  const auto config = text.ok() ? ParseJson(*text, path) : text.status();
  Json record = {{"kind", "config"}};
  if (!config.ok() || !config->is_object()) {
    return record;
  }
  record["train_steps"] = config->value("train_steps", Json());
  if (const auto metrics = config->find("metrics");
      metrics != config->end() && metrics->is_object()) {
    record["columns"] = metrics->value("console", Json());
  }
  return record;
}

void PrintOutput(const std::string& prefix, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    std::printf("%s%s\n", prefix.c_str(), Printable(line).c_str());
  }
  std::fflush(stdout);
}

// The outputs of a run's newest attempt.
class Outputs {
 public:
  explicit Outputs(const LogsOptions& options) : options_(options) {}

  // Shows the last lines of those that are in the folder.
  void Begin(const std::string& folder) {
    folder_ = folder;
    for (const auto& [rank, path] : LogFiles(folder, options_.rank)) {
      const std::string prefix = Add(rank, path, FileEnd(path));
      PrintOutput(prefix, LastLines(path, 0, static_cast<size_t>(options_.lines)));
    }
  }

  // Shows new lines, and those of an attempt that has begun since.
  void PrintNew(bool finished) {
    const absl::StatusOr<std::string> folder = LogFolder(options_);
    if (folder.ok() && *folder != folder_) {
      Print(/*finished=*/true);
      outputs_.clear();
      folder_ = *folder;
    }
    for (const auto& [rank, path] : LogFiles(folder_, options_.rank)) {
      if (known_.count(path) == 0) {
        Add(rank, path, 0);
      }
    }
    Print(finished);
  }

 private:
  std::string Add(int rank, const std::string& path, uint64_t from) {
    known_.insert(path);
    outputs_.push_back(
        {absl::StrFormat("[rank %d%s] ", rank, absl::EndsWith(path, ".err") ? " err" : ""),
         FileTail(path, from)});
    return outputs_.back().prefix;
  }
  void Print(bool finished) {
    for (Output& output : outputs_) {
      PrintOutput(output.prefix, finished ? output.tail.Drain() : output.tail.Poll());
    }
  }

  const LogsOptions& options_;
  std::string folder_;
  std::vector<Output> outputs_;
  std::set<std::string> known_;
};

RunConsoleOptions EveryStep() {
  RunConsoleOptions options;
  options.console.write_timeout = absl::InfiniteDuration();  // No other work waits for this write.
  options.every_step = true;
  return options;
}

// Shows the metrics of a rank as the run's console does, but every step, whatever the run's
// interval was.
class Metrics {
 public:
  Metrics(const std::string& run_dir, const std::string& path, size_t lines)
      : console_(EveryStep()), tail_(path, FileEnd(path)) {
    console_.Take(SettingsOf(run_dir));
    Print(LastLines(path, 0, lines));
  }
  void PrintNew(bool finished) { Print(finished ? tail_.Drain() : tail_.Poll()); }
  bool reader_has_gone() { return console_.console().dropped() > 0; }

 private:
  void Print(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      if (const auto record = ParseRecord(line)) {
        console_.Take(*record);
      }
    }
    console_.ShowProgress();
  }

  RunConsole console_;
  FileTail tail_;
};

bool SaysFinish(const std::vector<std::string>& lines) {
  return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    const auto record = ParseRecord(line);
    return record.has_value() && record->contains("event") && (*record)["event"] == "finish";
  });
}

// Shows new lines until the agent's event log says that the run has finished, or nobody reads our
// output any more.
void Follow(const std::string& run_dir, Outputs& outputs, Metrics& metrics) {
  const std::string events_path = run_dir + "/events.jsonl";
  const bool over = SaysFinish(LastLines(events_path, 0, 1));
  FileTail events(events_path, FileEnd(events_path));
  for (bool finished = over;;) {
    finished = finished || SaysFinish(events.Poll());
    outputs.PrintNew(finished);
    metrics.PrintNew(finished);
    if (finished || std::ferror(stdout) != 0 || metrics.reader_has_gone()) {
      return;
    }
    Clock::Real().Sleep(absl::Milliseconds(200));
  }
}

// Where the output of a rank is that has none here, and how to see it; "": no job that runs in
// `run_dir` has the rank on another host.
std::string WhereElse(const std::string& run_dir, int rank, const Environment& environment) {
  const auto jobs = RunningJobs(RegistryFolder(environment));
  const JobFacts* const job = jobs.ok() ? JobIn(run_dir, *jobs) : nullptr;
  const absl::StatusOr<Json> status =
      job != nullptr ? AskJob(*job) : absl::StatusOr<Json>(absl::NotFoundError(run_dir));
  if (!status.ok()) {
    return "";
  }
  for (const Json& row : (*status)["ranks"]) {
    const std::string host = row.value("host", "");
    if (row["rank"] == rank && !host.empty() && row["node"] != job->node_rank) {
      // The words reach a shell here, and another one there.
      return absl::StrFormat(
          "rank %d runs on node %d; see its output by: ssh %s dtrain logs --rank %d %s", rank,
          row["node"].get<int>(), QuoteForShell(host), rank,
          QuoteForShell(job->run_dir) == job->run_dir ? job->run_dir
                                                      : QuoteForShell(QuoteForShell(job->run_dir)));
    }
  }
  return "";
}

// A rank that has no files where others have some is no rank of the attempt, or runs on another
// host that writes to a disk of its own.
absl::Status CheckRank(const std::string& log_dir, const LogsOptions& options,
                       const Environment& environment) {
  if (options.rank < 0 || !LogFiles(log_dir, options.rank).empty()) {
    return absl::OkStatus();
  }
  const std::string where = WhereElse(options.run_dir, options.rank, environment);
  if (!where.empty()) {
    return absl::NotFoundError(where);
  }
  const auto files = LogFiles(log_dir, -1);
  return files.empty() ? absl::OkStatus()
                       : absl::NotFoundError(absl::StrFormat(
                             "%s has no output of rank %d; it has that of ranks from %d to %d",
                             log_dir, options.rank, files.front().first, files.back().first));
}

absl::Status ShowLogs(const LogsOptions& options, const Environment& environment) {
  DT_ASSIGN_OR_RETURN(const std::string folder, LogFolder(options));
  DT_RETURN_IF_ERROR(CheckRank(folder, options, environment));
  Outputs outputs(options);
  outputs.Begin(folder);
  const std::string path =
      absl::StrFormat("%s/metrics/rank-%d.jsonl", options.run_dir, std::max(0, options.rank));
  Metrics metrics(options.run_dir, path, static_cast<size_t>(options.lines));
  if (options.follow) {
    Follow(options.run_dir, outputs, metrics);
  }
  return absl::OkStatus();
}

}  // namespace

int LogsCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Shows the output of all ranks in the newest attempt of a run, and its metrics in the "
      "columns of the run's metrics.console. If a rank's output is on another host's disk, says "
      "how "
      "to see it there while the job runs.",
      "dtrain logs");
  LogsOptions options;
  app.add_option("RUN_DIR", options.run_dir, "Run directory")->required();
  app.add_flag("-f,--follow", options.follow,
               "Show new lines as they come, those of a restart too, until the run ends or Ctrl-C. "
               "Default: off");
  app.add_option("-n", options.lines, "Begin with the last LINES lines of each file, 0 or more")
      ->option_text("LINES")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--rank", options.rank, "Show the output of rank R only. Default: all ranks")
      ->option_text("R")
      ->check(CLI::Range(0, (1 << 20) - 1));
  app.add_option("--log-dir", options.log_dir,
                 "Folder of the ranks' output, where `dtrain launch` was given one. Default: "
                 "RUN_DIR/logs")
      ->option_text("DIR");
  app.footer(
      "Examples:\n"
      "  dtrain logs runs/gpt\n"
      "  dtrain logs -f --rank 1 runs/gpt");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  return EndOf("dtrain logs", ShowLogs(options, environment));
}

}  // namespace dtrain::launcher
