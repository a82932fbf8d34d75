// Follows a file that another process appends to, line by line. Not thread-safe.
//
// Reading never disturbs the writer. An incomplete last line is kept back until its end arrives
// (Drain gives it as it is); a file that does not exist yet is opened when it appears; a file that
// shrank is read from its start. When another file has taken the path, the old one is read to its
// end and the new one from its start. Lines longer than the cap are cut and marked.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace dtrain::launcher {

inline constexpr size_t kLineBytesMax = 16 << 10;

class FileTail {
 public:
  // Starts at byte `from`: FileEnd(path) skips what an earlier run wrote.
  explicit FileTail(std::string path, uint64_t from = 0) : path_(std::move(path)), offset_(from) {}

  // The lines completed since the last call, without line ends; at most about `bytes_max` bytes are
  // read, so that a flood is spread over calls. Does not block.
  std::vector<std::string> Poll(size_t bytes_max = 256 << 10);
  // The rest of the file, including an incomplete last line; at most `bytes_max`.
  std::vector<std::string> Drain(size_t bytes_max = 4 << 20);
  const std::string& path() const { return path_; }
  // Offset at which the next read starts.
  uint64_t offset() const { return offset_; }

 private:
  bool Open();
  void StartOver();
  size_t Read(size_t bytes_max, std::vector<std::string>& lines);

  std::string path_;
  uint64_t offset_;
  UniqueFd fd_;
  std::string partial_;
  bool cutting_ = false;  // The read position is inside a line longer than the cap.
};

// The length of `path` now; 0 when it does not exist.
uint64_t FileEnd(const std::string& path);

// Where the last bytes of `path` are kept when it is begun anew (LimitLog).
inline std::string KeptPath(const std::string& path) { return path + ".1"; }

// The last `lines_max` lines of `path` that begin at `from` or later, for a failure report. If the
// file was begun anew, those before are counted in.
std::vector<std::string> LastLines(const std::string& path, uint64_t from, size_t lines_max);

}  // namespace dtrain::launcher
