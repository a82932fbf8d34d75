// Owns one file descriptor. Move-only; the destructor closes and ignores the result, so files whose
// close() may fail are closed by Close(). Not thread-safe.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/status.h"

namespace dtrain {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset(other.release());
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = fd;
  }
  // Closes and reports: on network file systems a write error may surface only here.
  absl::Status Close() {
    const int fd = release();
    if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) {
      return ErrnoStatus(errno, "close");
    }
    return absl::OkStatus();
  }

 private:
  int fd_ = -1;
};

}  // namespace dtrain
