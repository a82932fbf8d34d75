// A storage that hands every call on to another one: tests override what they watch or break.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

class ForwardingStorage : public Storage {
 public:
  explicit ForwardingStorage(Storage& inner) : inner_(inner) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> CreateFile(const std::string& path, uint64_t bytes,
                                                           Access access) override {
    return inner_.CreateFile(path, bytes, access);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    return inner_.OpenFile(path);
  }
  absl::Status Publish(const std::string& path, absl::string_view content) override {
    return inner_.Publish(path, content);
  }
  absl::Status Replace(const std::string& path, absl::string_view content) override {
    return inner_.Replace(path, content);
  }
  absl::Status MoveFile(const std::string& from, const std::string& to) override {
    return inner_.MoveFile(from, to);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    return inner_.MakeDirectory(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return inner_.SyncDirectory(path);
  }
  absl::StatusOr<std::vector<Entry>> List(const std::string& path) override {
    return inner_.List(path);
  }
  absl::Status RemoveFile(const std::string& path) override { return inner_.RemoveFile(path); }
  absl::Status RemoveDirectory(const std::string& path) override {
    return inner_.RemoveDirectory(path);
  }
  std::string DisplayName(const std::string& path) const override {
    return inner_.DisplayName(path);
  }

 protected:
  Storage& inner_;  // Outlives this.
};

}  // namespace dtrain::checkpoint
