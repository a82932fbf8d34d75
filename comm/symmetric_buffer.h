// Memory that peers can reach: allocated once, registered per group, never moved.
//
// A SymmetricBuffer owns one shared-memory segment (host) that tensors view; tensor storages hold a
// reference. Group::Register makes it reachable by the group's peers for one group epoch; all ranks
// register in the same order with equal sizes. Thread-safe after Create.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "comm/shared_mapping.h"

namespace dtrain::comm {

class SymmetricBuffer {
 public:
  // `bytes` of zeroed host memory in an anonymous shared segment (memfd: nothing stays behind after
  // a kill), space reserved up front, so that a full /dev/shm is an error here (ResourceExhausted,
  // naming needed and available bytes) and never a SIGBUS later. From 2 MiB on it is of huge
  // pages of the host's pool (vm.nr_hugepages) if that has enough; others are ordinary pages, which
  // the kernel may make huge (shmem_enabled). `name` appears in /proc and in messages.
  static absl::StatusOr<std::shared_ptr<SymmetricBuffer>> Create(size_t bytes,
                                                                 absl::string_view name);
  SymmetricBuffer(const SymmetricBuffer&) = delete;
  SymmetricBuffer& operator=(const SymmetricBuffer&) = delete;
  ~SymmetricBuffer() = default;

  void* data() const { return mapping_.data(); }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  const std::string& name() const { return name_; }

 private:
  SymmetricBuffer(UniqueFd fd, SharedMapping mapping, size_t bytes, std::string name);
  UniqueFd fd_;
  SharedMapping mapping_;
  size_t bytes_;
  std::string name_;
};

}  // namespace dtrain::comm
