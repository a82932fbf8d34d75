// A private folder (mode 0700, unpredictable name) for the agent's socket; removed with its owner.
// Move-only; not thread-safe.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace dtrain::launcher {

class TempDir {
 public:
  // Creates the folder under `parent` (TMPDIR or /tmp).
  static absl::StatusOr<TempDir> Create(const std::string& parent);
  TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TempDir& operator=(TempDir&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~TempDir();
  const std::string& path() const { return path_; }

 private:
  explicit TempDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Removes `path` and the plain files in it.
void RemoveTempDir(const std::string& path);

}  // namespace dtrain::launcher
