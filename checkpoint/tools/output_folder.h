// A new folder that appears whole or not at all: it is written under another name beside its place
// and renamed when everything in it is durable. Not thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

class OutputFolder {
 public:
  // Begins a folder for `path`. AlreadyExists: something is there, other than an empty folder; it
  // is left alone. InvalidArgument: it is empty or the address of an object store.
  static absl::StatusOr<std::unique_ptr<OutputFolder>> Create(std::string path);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  // Removes what was written, unless it was published.
  ~OutputFolder();

  // Where to write; its files are in the folder when it is published.
  Storage& storage() { return *storage_; }
  // Makes the folder appear. REQUIRES: its files and folders are durable.
  absl::Status Publish();

 private:
  OutputFolder(std::string path, std::string partial)
      : path_(std::move(path)), partial_(std::move(partial)) {}

  const std::string path_;
  const std::string partial_;
  std::unique_ptr<Storage> storage_;
};

}  // namespace dtrain::checkpoint
