// The memory that peers write into and that is sent from: every slot of every ring of a rank, in
// one mapping. Move-only; the destructor unmaps it.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace dtrain::comm {

class StagingMemory {
 public:
  // Zeroed, page-aligned and not inherited by forked children: a copy of a page that a device
  // writes to would take the page away from it. ResourceExhausted: no memory.
  static absl::StatusOr<StagingMemory> Create(size_t bytes);
  StagingMemory(StagingMemory&& other) noexcept;
  StagingMemory& operator=(StagingMemory&& other) = delete;
  ~StagingMemory();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  StagingMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  size_t bytes_;
};

}  // namespace dtrain::comm
