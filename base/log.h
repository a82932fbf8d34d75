// DT_LOG(Info) << "text": one line to stderr, written with one system call.
//
// Format: "[I 12:03:44.123 rank 1] text". Thread-safe. The least level that is written is
// DTRAIN_LOG_LEVEL's, read at the first line, or what SetLogLevel set; by default it is Info.
#pragma once

#include <sstream>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// The level of a name: "debug", "info", "warning" or "error". InvalidArgument: another name.
absl::StatusOr<LogLevel> LogLevelFromName(absl::string_view name);
// Lines below `level` are dropped.
void SetLogLevel(LogLevel level);
// Shown in each line from then on; -1 (the default) shows none.
void SetLogRank(int rank);
bool LogEnabled(LogLevel level);
// Writes one line now. Control characters other than tab become '?', so that a peer's or a file's
// text cannot drive the reader's terminal.
void LogLine(LogLevel level, absl::string_view text);
// Says that a progress line without its end stands on the terminal. The next line of the log, if
// stderr is a terminal, takes its place; one that says why the program ends leaves it above.
// Whoever draws progress asks by UnfinishedLine whether its line is still there, and by
// UnfinishedLineWasLeft whether it stands above such a line.
void SetUnfinishedLine(bool unfinished);
bool UnfinishedLine();
bool UnfinishedLineWasLeft();

namespace internal {
class LogMessage {
 public:
  explicit LogMessage(LogLevel level) : level_(level) {}
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;
  ~LogMessage() { LogLine(level_, stream_.str()); }
  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  std::ostringstream stream_;
};
}  // namespace internal
}  // namespace dtrain

#define DT_LOG(level)                                        \
  if (!::dtrain::LogEnabled(::dtrain::LogLevel::k##level)) { \
  } else                                                     \
    ::dtrain::internal::LogMessage(::dtrain::LogLevel::k##level).stream()
