#include "launcher/records/file_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/text/text.h"

namespace dtrain::launcher {
namespace {

// The last lines of one file.
std::vector<std::string> LinesAtEnd(const std::string& path, uint64_t from, size_t lines_max) {
  constexpr uint64_t kTailBytes = 64 << 10;
  struct stat info {};
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || fstat(fd.get(), &info) != 0) {
    return {};
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  from = std::max(std::min(from, size), size > kTailBytes ? size - kTailBytes : 0);
  std::string text(size - from, '\0');
  const ssize_t n = pread(fd.get(), text.data(), text.size(), static_cast<off_t>(from));
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  std::vector<std::string> lines;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    if (end > start) {
      lines.push_back(Printable(text.substr(start, std::min(end - start, kLineBytesMax))));
    }
    start = end + 1;
  }
  if (lines.size() > lines_max) {
    lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(lines_max));
  }
  return lines;
}

}  // namespace

uint64_t FileEnd(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

void FileTail::StartOver() {
  offset_ = 0;
  partial_.clear();
  cutting_ = false;
}

bool FileTail::Open() {
  if (!fd_.valid()) {
    fd_.reset(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  struct stat opened {};
  if (!fd_.valid() || fstat(fd_.get(), &opened) != 0) {
    return false;
  }
  struct stat named {};
  if (static_cast<uint64_t>(opened.st_size) <= offset_ && stat(path_.c_str(), &named) == 0 &&
      (named.st_dev != opened.st_dev || named.st_ino != opened.st_ino)) {
    // The file that was moved away has been read to its end; open the one that has its name now.
    UniqueFd replacement(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!replacement.valid() || fstat(replacement.get(), &opened) != 0) {
      return false;
    }
    fd_ = std::move(replacement);
    StartOver();
  }
  if (static_cast<uint64_t>(opened.st_size) < offset_) {  // The file was truncated.
    StartOver();
  }
  return static_cast<uint64_t>(opened.st_size) > offset_;
}

size_t FileTail::Read(size_t bytes_max, std::vector<std::string>& lines) {
  std::array<char, 1 << 16> chunk{};
  const ssize_t n = pread(fd_.get(), chunk.data(), std::min(chunk.size(), bytes_max),
                          static_cast<off_t>(offset_));
  if (n <= 0) {
    return 0;
  }
  offset_ += static_cast<uint64_t>(n);
  for (const char c : std::string_view(chunk.data(), static_cast<size_t>(n))) {
    if (c == '\n') {
      if (!cutting_) {
        lines.push_back(std::move(partial_));
      }
      partial_.clear();
      cutting_ = false;
    } else if (!cutting_) {
      partial_ += c;
      if (partial_.size() >= kLineBytesMax) {
        lines.push_back(partial_ + " ... (line cut)");
        cutting_ = true;
      }
    }
  }
  return static_cast<size_t>(n);
}

std::vector<std::string> FileTail::Poll(size_t bytes_max) {
  std::vector<std::string> lines;
  if (Open()) {
    for (size_t n = 1; bytes_max > 0 && n > 0; bytes_max -= n) {
      n = Read(bytes_max, lines);
    }
  }
  return lines;
}

std::vector<std::string> FileTail::Drain(size_t bytes_max) {
  std::vector<std::string> lines = Poll(bytes_max);
  if (!partial_.empty() && !cutting_) {
    lines.push_back(std::move(partial_));
    partial_.clear();
  }
  return lines;
}

std::vector<std::string> LastLines(const std::string& path, uint64_t from, size_t lines_max) {
  from = from > FileEnd(path) ? 0 : from;  // It was begun anew since.
  std::vector<std::string> lines = LinesAtEnd(path, from, lines_max);
  if (from > 0 || lines.size() >= lines_max) {
    return lines;
  }
  std::vector<std::string> all = LinesAtEnd(KeptPath(path), 0, lines_max - lines.size());
  all.insert(all.end(), std::make_move_iterator(lines.begin()),
             std::make_move_iterator(lines.end()));
  return all;
}

}  // namespace dtrain::launcher
