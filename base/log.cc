#include "base/log.h"

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <string>

#include "absl/strings/str_format.h"
#include "base/console/terminal.h"
#include "base/job_env.h"

namespace dtrain {
namespace {

std::atomic<int> log_rank{-1};
enum class ProgressLine { kNone, kUnfinished, kLeft };
std::atomic<ProgressLine> progress_line{ProgressLine::kNone};

LogLevel LevelOfEnvironment() {
  const std::string name = LogLevelName(ReadEnvironment());
  if (name.empty()) {
    return LogLevel::kInfo;
  }
  const absl::StatusOr<LogLevel> level = LogLevelFromName(name);
  if (!level.ok()) {
    LogLine(LogLevel::kWarning, absl::StrFormat("%s: %s; taken as info", env::kLogLevel,
                                                std::string(level.status().message())));
  }
  return level.value_or(LogLevel::kInfo);
}

std::atomic<int>& Threshold() {
  static std::atomic<int> threshold{static_cast<int>(LevelOfEnvironment())};
  return threshold;
}

// The characters that make room for a line if a progress line is on the terminal.
std::string MakeRoom(LogLevel level) {
  const bool leave = level == LogLevel::kError;
  ProgressLine expected = ProgressLine::kUnfinished;
  if (progress_line.load() != expected || !IsTerminal(STDERR_FILENO) ||
      !progress_line.compare_exchange_strong(expected,
                                             leave ? ProgressLine::kLeft : ProgressLine::kNone)) {
    return "";
  }
  return leave ? "\n" : "\r\x1b[K";
}

}  // namespace

absl::StatusOr<LogLevel> LogLevelFromName(absl::string_view name) {
  constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};
  int level = 0;
  for (const absl::string_view known : kNames) {
    if (name == known) {
      return static_cast<LogLevel>(level);
    }
    ++level;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("log level \"%s\" is unknown; allowed: debug, info, warning, error", name));
}

void SetLogLevel(LogLevel level) { Threshold() = static_cast<int>(level); }
void SetLogRank(int rank) { log_rank = rank; }
void SetUnfinishedLine(bool unfinished) {
  progress_line = unfinished ? ProgressLine::kUnfinished : ProgressLine::kNone;
}
bool UnfinishedLine() { return progress_line.load() == ProgressLine::kUnfinished; }
bool UnfinishedLineWasLeft() { return progress_line.load() == ProgressLine::kLeft; }
bool LogEnabled(LogLevel level) { return static_cast<int>(level) >= Threshold().load(); }

void LogLine(LogLevel level, absl::string_view text) {
  timeval now{};
  gettimeofday(&now, nullptr);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  std::string line = MakeRoom(level);
  absl::StrAppendFormat(&line, "[%c %02d:%02d:%02d.%03d", "DIWE"[static_cast<int>(level)],
                        local.tm_hour, local.tm_min, local.tm_sec,
                        static_cast<int>(now.tv_usec / 1000));
  if (const int rank = log_rank.load(); rank >= 0) {
    absl::StrAppendFormat(&line, " rank %d", rank);
  }
  line += "] ";
  for (const char c : text) {
    const bool control =
        (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n') || c == 0x7f;
    line += control ? '?' : c;
  }
  line += '\n';
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (n <= 0) {
      return;  // There is no other place to report the error.
    }
    written += static_cast<size_t>(n);
  }
}

}  // namespace dtrain
