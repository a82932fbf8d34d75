// A range of addresses without memory behind it until it is opened: where ZeRO stage 3 keeps
// gathered weights, so that tensors over it stay valid while their memory comes and goes.
//
// Owns the range; movable. Ranges are bytes and multiples of the page size, but for the end of the
// whole. Ranges that are not open may not be touched: the process gets SIGSEGV. Not thread-safe.
#pragma once

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dtrain {

class ReservedMemory {
 public:
  // ResourceExhausted when the address space is limited below that.
  static absl::StatusOr<ReservedMemory> Create(size_t bytes);
  ReservedMemory(ReservedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ReservedMemory& operator=(ReservedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ReservedMemory();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // May be read and written; what is in it is undefined.
  absl::Status Open(size_t offset, size_t bytes);
  // May not be touched, but keeps its memory for the next Open.
  absl::Status Close(size_t offset, size_t bytes);
  // May not be touched, and its memory goes back to the system.
  absl::Status Discard(size_t offset, size_t bytes);

 private:
  ReservedMemory(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  absl::Status Protect(size_t offset, size_t bytes, int protection);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace dtrain
