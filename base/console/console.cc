#include "base/console/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/log.h"

namespace dtrain {
namespace {

constexpr char kEraseLine[] = "\r\x1b[K";
constexpr size_t kChunkBytes = 4096;  // PIPE_BUF: a writable pipe takes this much at once.

bool Writable(int fd, Deadline deadline) {
  pollfd entry{fd, POLLOUT, 0};
  int ready = 0;
  do {  // Repeats after a signal that the program handles, so that no line is lost.
    ready = poll(&entry, 1, deadline.PollTimeoutMs());
  } while ((ready == 0 && !deadline.Expired()) || (ready < 0 && errno == EINTR));
  return ready > 0 && (entry.revents & (POLLERR | POLLNVAL)) == 0;
}

}  // namespace

Console::Console(ConsoleOptions options) : options_(options) {}

Console::~Console() { DrawnOnTerminal(false); }

int Console::columns() const {
  if (!options_.terminal) {
    return 0;
  }
  winsize size{};
  const bool known = ioctl(options_.out_fd, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return known ? size.ws_col : 80;
}

int Console::progress_columns() const { return options_.terminal ? std::max(1, columns() - 3) : 0; }

// Whether the progress line is on the terminal's last line. A line of this process's log may have
// replaced it.
bool Console::OnTerminal() const {
  return options_.terminal && progress_shown_ && (!options_.own_log || UnfinishedLine());
}

std::string Console::Erase() const { return OnTerminal() ? kEraseLine : ""; }

void Console::DrawnOnTerminal(bool drawn) {
  progress_shown_ = drawn;
  if (options_.terminal && options_.own_log) {
    SetUnfinishedLine(drawn);
  }
}

void Console::Write(int fd, std::string text) {
  for (size_t at = 0; at < text.size();) {
    const auto wait = blocked_ ? absl::ZeroDuration() : options_.write_timeout;
    if (!Writable(fd, Deadline::After(wait))) {
      blocked_ = true;
      ++dropped_;
      return;
    }
    blocked_ = false;
    const ssize_t n = write(fd, text.data() + at, std::min(kChunkBytes, text.size() - at));
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
      ++dropped_;  // The reader has gone, and the agent's files hold the line.
      return;
    }
    at += n > 0 ? static_cast<size_t>(n) : 0;
  }
}

void Console::Out(absl::string_view line) {
  Write(options_.out_fd, absl::StrCat(Erase(), line, "\n"));
  if (options_.terminal) {
    DrawnOnTerminal(false);
  }
}

void Console::Err(absl::string_view line) {
  if (OnTerminal()) {
    Write(options_.out_fd, Erase());
    DrawnOnTerminal(false);
  }
  Write(options_.err_fd, absl::StrCat(line, "\n"));
}

void Console::Progress(const std::string& line) {
  Write(options_.out_fd, options_.terminal ? absl::StrCat(Erase(), line) : line + "\n");
  DrawnOnTerminal(true);
  progress_ = line;
  latest_ = line;
}

void Console::LatestProgress(const std::string& line) { latest_ = line; }

void Console::Refresh() {
  if (options_.terminal && !OnTerminal() && !progress_.empty()) {
    Write(options_.out_fd, progress_);
    DrawnOnTerminal(true);
  }
}

void Console::LeaveProgress() {
  const bool latest_shown = progress_shown_ && latest_ == progress_;
  // Whether this process has logged an error below the line that says how the program ends.
  const bool left =
      options_.terminal && options_.own_log && progress_shown_ && UnfinishedLineWasLeft();
  if (left || (latest_shown && !options_.terminal)) {
    // The line was left or printed before.
  } else if (latest_shown && OnTerminal()) {
    Write(options_.out_fd, "\n");
  } else if (!latest_.empty()) {
    Write(options_.out_fd, absl::StrCat(Erase(), latest_, "\n"));
  }
  progress_.clear();
  latest_.clear();
  DrawnOnTerminal(false);
}

void Console::StartLine() {
  LeaveProgress();
  if (options_.terminal) {
    Write(options_.out_fd, kEraseLine);  // Erases the "^C" that the terminal has echoed.
  }
}

}  // namespace dtrain
