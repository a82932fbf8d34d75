#include "launcher/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace dtrain::launcher {
namespace {

constexpr char kEraseLine[] = "\r\x1b[K";
constexpr size_t kChunkBytes = 4096;  // PIPE_BUF: a writable pipe takes this much at once.

bool Writable(int fd, int timeout_ms) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, timeout_ms) > 0 && (entry.revents & (POLLERR | POLLNVAL)) == 0;
}

}  // namespace

Console::Console(ConsoleOptions options)
    : options_(options), next_plain_(Deadline::After(absl::ZeroDuration(), *options.clock)) {}

int Console::progress_columns() const {
  if (!options_.terminal) {
    return 0;
  }
  winsize size{};
  const bool known = ioctl(options_.out_fd, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return std::max(1, (known ? size.ws_col : 80) - 3);
}

std::string Console::Erase() const {
  return options_.terminal && progress_shown_ ? kEraseLine : "";
}

void Console::Write(int fd, std::string text) {
  for (size_t at = 0; at < text.size();) {
    const auto wait = blocked_ ? absl::ZeroDuration() : options_.write_timeout;
    if (!Writable(fd, static_cast<int>(absl::ToInt64Milliseconds(wait)))) {
      blocked_ = true;
      ++dropped_;
      return;
    }
    blocked_ = false;
    const ssize_t n = write(fd, text.data() + at, std::min(kChunkBytes, text.size() - at));
    if (n < 0 && errno != EINTR && errno != EAGAIN) {
      ++dropped_;  // The reader has gone; the files stay.
      return;
    }
    at += n > 0 ? static_cast<size_t>(n) : 0;
  }
}

void Console::Out(absl::string_view line) {
  Write(options_.out_fd, absl::StrCat(Erase(), line, "\n"));
  progress_shown_ = progress_shown_ && !options_.terminal;
}

void Console::Err(absl::string_view line) {
  if (options_.terminal && progress_shown_) {
    Write(options_.out_fd, Erase());
    progress_shown_ = false;
  }
  Write(options_.err_fd, absl::StrCat(line, "\n"));
}

void Console::Progress(const std::string& line) {
  if (options_.terminal) {
    Write(options_.out_fd, absl::StrCat(Erase(), line));
    progress_shown_ = true;
  } else {
    progress_shown_ = next_plain_.Expired();
    if (progress_shown_) {
      Write(options_.out_fd, absl::StrCat(line, "\n"));
      next_plain_ = Deadline::After(options_.plain_interval, *options_.clock);
    }
  }
  progress_ = line;
}

void Console::Refresh() {
  if (options_.terminal && !progress_shown_ && !progress_.empty()) {
    Write(options_.out_fd, progress_);
    progress_shown_ = true;
  }
}

void Console::LeaveProgress() {
  if (!progress_.empty() && options_.terminal && progress_shown_) {
    Write(options_.out_fd, "\n");
  } else if (!progress_.empty() && !progress_shown_) {
    Write(options_.out_fd, absl::StrCat(progress_, "\n"));
  }
  progress_.clear();
  progress_shown_ = false;
}

void Console::StartLine() {
  LeaveProgress();
  if (options_.terminal) {
    Write(options_.out_fd, kEraseLine);  // The "^C" that the terminal has echoed.
  }
}

}  // namespace dtrain::launcher
