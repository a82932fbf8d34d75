// Knows which places hold which files, as far as anybody has told. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace dtrain {

// A path as its folder ("" is the root) and the name in it.
std::pair<std::string, std::string> SplitFilePath(const std::string& path);

class FileIndex {
 public:
  struct Copy {
    size_t place = 0;
    uint64_t bytes = 0;
    bool operator==(const Copy&) const = default;
  };
  using Copies = std::vector<Copy>;              // Best first; never empty.
  using Folder = std::map<std::string, Copies>;  // The files of a folder by name.

  // No value: it is not known whether there is one.
  std::optional<Copies> Find(const std::string& path) const;
  void SetFolder(const std::string& folder, Folder files);
  void SetFile(const std::string& path, Copies copies);
  // The copy that this rank has opened last; no value: none.
  std::optional<Copy> Opened(const std::string& path) const;
  void SetOpened(const std::string& path, const Copy& copy);
  void ForgetFile(const std::string& path);
  // And all folders in it.
  void ForgetFolder(const std::string& folder);

  // Gives all that is known of these folders, for the index of another rank.
  std::string Encode(const std::vector<std::string>& folders) const;
  // InvalidArgument: it is no such text, or names a place that is not below `places`.
  absl::Status Take(const std::string& text, size_t places);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Folder> folders_;
  std::map<std::string, Copy> opened_;  // By path.
};

}  // namespace dtrain
