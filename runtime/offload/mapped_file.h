// Memory that is a file without a name: its pages come and go with the page cache, and nothing is
// left of it whatever ends the process. It may begin with ordinary memory, which is no file.
//
// Owns the file and one mapping of all. Movable.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "runtime/memory/memory_fault.h"

namespace dtrain {

class MappedFile {
 public:
  // `bytes` of zeros, all but the first `near_bytes` in `folder`, whose blocks are reserved at
  // once: a disk that is too small is an error here, not a SIGBUS later. NotFound, PermissionDenied
  // and ResourceExhausted begin with `setting`, which says where the folder comes from, and name
  // folder and size. A page that the disk cannot give or take later ends the process with such a
  // line and exit code 75. REQUIRES: near_bytes is a multiple of the page size, up to `bytes`.
  static absl::StatusOr<MappedFile> Create(const std::string& folder, size_t bytes,
                                           absl::string_view setting, size_t near_bytes = 0);
  MappedFile(MappedFile&& other) noexcept
      : file_(std::move(other.file_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        fault_(std::move(other.fault_)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(fault_, other.fault_);
    return *this;
  }
  ~MappedFile();

  void* data() const { return data_; }
  // The file of the bytes after the first near_bytes; its byte 0 is the first of them.
  int fd() const { return file_.get(); }

 private:
  MappedFile(UniqueFd file, void* data, size_t bytes)
      : file_(std::move(file)), data_(data), bytes_(bytes) {}
  UniqueFd file_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  std::unique_ptr<FileFault> fault_;
};

}  // namespace dtrain
