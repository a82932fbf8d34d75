#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/console/record_line.h"
#include "base/file.h"
#include "base/progress_line.h"
#include "base/status.h"
#include "base/text.h"
#include "launcher/commands/commands.h"
#include "launcher/file_tail.h"

namespace dtrain::launcher {
namespace {

constexpr char kLogsHelp[] =
    R"(Usage: dtrain logs [-f] [-n LINES] [--rank R] RUN_DIR
Shows the output of all ranks in the newest attempt of a run, and its metrics.

  RUN_DIR       Run directory.
  -f, --follow  Show new lines as they come, until the run ends or Ctrl-C.
                Default: off.
  -n LINES      Begin with the last LINES lines of each file, 0 or more.
                Default: 10.
  --rank R      Show the output of rank R only. Default: all ranks.

Examples:
  dtrain logs runs/gpt
  dtrain logs -f --rank 1 runs/gpt
)";

struct LogsOptions {
  std::string run_dir;
  int rank = -1;
  int lines = 10;
  bool follow = false;
};

struct Followed {
  std::string prefix;
  FileTail tail;
  bool is_metrics = false;
};

absl::StatusOr<LogsOptions> ParseLogs(const std::vector<std::string>& arguments) {
  LogsOptions options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    int* const number = argument == "-n"       ? &options.lines
                        : argument == "--rank" ? &options.rank
                                               : nullptr;
    if (number != nullptr) {
      if (i + 1 == arguments.size() || !absl::SimpleAtoi(arguments[i + 1], number) || *number < 0) {
        return absl::InvalidArgumentError(absl::StrCat(argument, " needs a number from 0"));
      }
      ++i;
    } else if (argument == "-f" || argument == "--follow") {
      options.follow = true;
    } else if (absl::StartsWith(argument, "-") || !options.run_dir.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown argument ", argument, "; see dtrain logs --help"));
    } else {
      options.run_dir = argument;
    }
  }
  if (options.run_dir.empty()) {
    return absl::InvalidArgumentError("no run directory given; example: dtrain logs runs/gpt");
  }
  return options;
}

// RUN_DIR/logs/attempt-A with the largest A.
absl::StatusOr<std::string> NewestAttempt(const std::string& run_dir) {
  int newest = -1;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/logs", ignored)) {
    const std::string name = entry.path().filename();
    int attempt = 0;
    if (absl::StartsWith(name, "attempt-") && absl::SimpleAtoi(name.substr(8), &attempt)) {
      newest = std::max(newest, attempt);
    }
  }
  if (newest < 0) {
    return absl::NotFoundError(absl::StrFormat(
        "no logs in %s (expected %s/logs/attempt-0); is it a run directory?", run_dir, run_dir));
  }
  return absl::StrFormat("%s/logs/attempt-%d", run_dir, newest);
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

// The record as the console of the run shows it; every step, whatever the run's interval was.
std::string TextOf(const Json& record) {
  return IsProgress(record) ? FormatProgress(record, {})
                            : absl::StrJoin(FormatRecord(record, 0), "\n");
}

void Print(const Followed& file, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    std::string text = Printable(line);
    if (file.is_metrics) {
      const auto record = ParseRecord(line);
      text = record.has_value() ? TextOf(*record) : "";
    }
    if (!text.empty()) {
      std::printf("%s%s\n", file.prefix.c_str(), text.c_str());
    }
  }
  std::fflush(stdout);
}

bool SaysFinish(const std::vector<std::string>& lines) {
  return std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    const auto record = ParseRecord(line);
    return record.has_value() && record->contains("event") && (*record)["event"] == "finish";
  });
}

// Until the agent's event log says that the run has finished, or nobody reads us any more.
void Follow(const LogsOptions& options, std::vector<Followed>& files) {
  const std::string events_path = options.run_dir + "/events.jsonl";
  const bool over = SaysFinish(LastLines(events_path, 0, 1));
  FileTail events(events_path, FileEnd(events_path));
  for (bool finished = over;;) {
    finished = finished || SaysFinish(events.Poll());
    for (Followed& file : files) {
      Print(file, finished ? file.tail.Drain() : file.tail.Poll());
    }
    if (finished || std::ferror(stdout) != 0) {
      return;
    }
    Clock::Real().Sleep(absl::Milliseconds(200));
  }
}

absl::Status ShowLogs(const LogsOptions& options) {
  DT_ASSIGN_OR_RETURN(const std::string log_dir, NewestAttempt(options.run_dir));
  std::vector<Followed> files;
  for (const auto& [rank, path] : LogFiles(log_dir, options.rank)) {
    const std::string prefix =
        absl::StrFormat("[rank %d%s] ", rank, absl::EndsWith(path, ".err") ? " err" : "");
    files.push_back({prefix, FileTail(path, FileEnd(path)), false});
    Print(files.back(), LastLines(path, 0, static_cast<size_t>(options.lines)));
  }
  const std::string metrics =
      absl::StrFormat("%s/metrics/rank-%d.jsonl", options.run_dir, std::max(0, options.rank));
  files.push_back({"", FileTail(metrics, FileEnd(metrics)), true});
  Print(files.back(), LastLines(metrics, 0, static_cast<size_t>(options.lines)));
  if (options.follow) {
    Follow(options, files);
  }
  return absl::OkStatus();
}

}  // namespace

int LogsCommand(const std::vector<std::string>& arguments) {
  if (AskedForHelp(arguments, kLogsHelp)) {
    return kExitOk;
  }
  absl::StatusOr<LogsOptions> options = ParseLogs(arguments);
  const absl::Status status = options.ok() ? ShowLogs(*options) : options.status();
  if (!status.ok()) {
    std::fprintf(stderr, "dtrain logs: %s\n", std::string(status.message()).c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace dtrain::launcher
