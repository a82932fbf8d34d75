// DT_LOG(Info) << "text": one line to stderr, written with one system call.
//
// Format: "[I 12:03:44.123 rank 1] text". Thread-safe. The lowest level that is written is that of
// DTRAIN_LOG_LEVEL, read at the first line, or of SetLogLevel; by default it is Info.
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
// Tells the log that a progress line without a line end is on the terminal. If stderr is a
// terminal, the next line of the log replaces it, but a line that says why the program ends leaves
// it above. The owner of the progress line can ask whether its line is still there
// (UnfinishedLine), and whether it is above such a line (UnfinishedLineWasLeft).
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
