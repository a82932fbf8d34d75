// Output for people: lines, and one progress line that is rewritten in place on a terminal.
//
// Not thread-safe; the owner locks it or uses it from one thread. If the reader of our output
// blocks (a stopped terminal, a full pipe), lines are dropped after `write_timeout` and counted:
// the agent's files hold them anyway, and the agent has ranks to watch.
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

  // Print one line, given without its end. On a terminal it replaces the progress line, which
  // Refresh draws again. Drawing it after every line would flicker and fill the recordings of
  // `script` and similar programs.
  void Out(absl::string_view line);
  void Err(absl::string_view line);
  // Shows `line` in place of the last progress line; without a terminal prints it.
  void Progress(const std::string& line);
  // Remembers `line` only for LeaveProgress: it belongs to a step that is not shown.
  void LatestProgress(const std::string& line);
  // On a terminal, draws the progress line again below the lines that took its place.
  void Refresh();
  // Leaves the latest progress line for good, on a line of its own; no Refresh brings it back.
  void LeaveProgress();
  // Leaves the progress line; on a terminal the next line starts at the left edge whatever was
  // typed there.
  void StartLine();
  // Width of the longest progress line: the terminal's columns less three, because the "^C" of a
  // Ctrl-C is echoed after it, and a wrapped line cannot be rewritten. 0 without a terminal: any
  // length.
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
  std::string progress_;         // The last line that was shown.
  std::string latest_;           // The line that LeaveProgress leaves.
  bool progress_shown_ = false;  // The line is on the terminal's last line, or has been printed.
  bool blocked_ = false;         // The last write timed out, so the next ones do not wait.
  uint64_t dropped_ = 0;
};

}  // namespace dtrain
