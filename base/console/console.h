// What a person sees: lines, and one progress line that is rewritten in place on a terminal.
//
// Not thread-safe; its owner locks, or has a thread for it. When the reader of our output stands
// still (a stopped terminal, a full pipe) lines are dropped after `write_timeout` and counted: the
// agent's files hold them anyway, and it has ranks to watch.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace dtrain {

struct ConsoleOptions {
  int out_fd = 1;
  int err_fd = 2;
  bool terminal = false;  // IsTerminal(out_fd).
  bool own_log = false;   // DT_LOG of this process writes to the same terminal.
  absl::Duration write_timeout = absl::Milliseconds(500);
};

class Console {
 public:
  explicit Console(ConsoleOptions options);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // One line each; without a line end. On a terminal it takes the place of the progress line, which
  // comes back with Refresh: drawn after each of several lines it would flicker, and fill what
  // `script` and the like record.
  void Out(absl::string_view line);
  void Err(absl::string_view line);
  // Shows `line` in place of the last progress line; without a terminal prints it.
  void Progress(const std::string& line);
  // Remembers `line` for LeaveProgress alone: a step between two that are shown.
  void LatestProgress(const std::string& line);
  // On a terminal, draws the progress line again below the lines that took its place.
  void Refresh();
  // Leaves the latest progress line for good, on a line of its own; no Refresh brings it back.
  void LeaveProgress();
  // The same, and on a terminal the next line starts at the left edge whatever was typed there.
  void StartLine();
  // The longest progress line: the terminal's columns less three, because the "^C" of a Ctrl-C is
  // echoed behind it, and what wraps cannot be rewritten. 0 without a terminal: any length.
  int progress_columns() const;
  bool on_terminal() const { return options_.terminal; }
  // The terminal's columns; 0 without a terminal.
  int columns() const;
  uint64_t dropped() const { return dropped_; }

 private:
  void Write(int fd, std::string text);
  bool OnTerminal() const;
  std::string Erase() const;
  void DrawnOnTerminal(bool drawn);

  const ConsoleOptions options_;
  std::string progress_;         // The last that was shown.
  std::string latest_;           // What LeaveProgress leaves.
  bool progress_shown_ = false;  // It stands on the terminal's last line, or has been printed.
  bool blocked_ = false;         // The last write timed out: try without waiting.
  uint64_t dropped_ = 0;
};

}  // namespace dtrain
