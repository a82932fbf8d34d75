// What a person sees: lines, and one progress line that is rewritten in place on a terminal.
//
// Not thread-safe; the reporter's thread owns it. Never blocks for long: when the reader of our
// output stands still (a stopped terminal, a full pipe) lines are dropped and counted, because the
// files hold them anyway and the agent has ranks to watch.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/deadline.h"

namespace dtrain::launcher {

struct ConsoleOptions {
  int out_fd = 1;
  int err_fd = 2;
  bool terminal = false;                             // out_fd is a terminal.
  absl::Duration plain_interval = absl::Seconds(5);  // Between progress lines without a terminal.
  absl::Duration write_timeout = absl::Milliseconds(500);
  Clock* clock = &Clock::Real();
};

class Console {
 public:
  explicit Console(ConsoleOptions options);

  // One line each; without a line end. On a terminal it takes the place of the progress line, which
  // comes back with Refresh: drawn after each of several lines it would flicker, and fill what
  // `script` and the like record.
  void Out(absl::string_view line);
  void Err(absl::string_view line);
  // Shows `line` in place of the last progress line; without a terminal at most one every
  // plain_interval is printed.
  void Progress(const std::string& line);
  // On a terminal, draws the progress line again below the lines that took its place.
  void Refresh();
  // Leaves the last progress line for good, on a line of its own; no Refresh brings it back.
  void LeaveProgress();
  // The same, and on a terminal the next line starts at the left edge whatever was typed there.
  void StartLine();
  // The longest progress line: the terminal's columns less three, because the "^C" of a Ctrl-C is
  // echoed behind it, and what wraps cannot be rewritten. 0 without a terminal: any length.
  int progress_columns() const;
  uint64_t dropped() const { return dropped_; }

 private:
  void Write(int fd, std::string text);
  std::string Erase() const;

  const ConsoleOptions options_;
  std::string progress_;         // The latest.
  bool progress_shown_ = false;  // It stands on the terminal's last line, or has been printed.
  Deadline next_plain_;
  bool blocked_ = false;  // The last write timed out: try without waiting.
  uint64_t dropped_ = 0;
};

}  // namespace dtrain::launcher
