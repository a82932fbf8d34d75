// The far memory of optimizer states and masters that are not beside the values: a second host
// buffer, or a file that has no name, so that nothing is left of it whatever ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/offload/mapped_file.h"

namespace dtrain {

// One state's far memory. `tensor` is all of it, for checkpoints and the first values: over the
// buffer, or over a mapping of the file, whose pages come and go with the page cache; the first
// `near_elements` are ordinary memory either way. The update of the others goes through Read and
// Write. Not thread-safe for ranges that overlap.
class FarState {
 public:
  // [elements] of fp32 or bf16, all `value`, in memory.
  static absl::StatusOr<FarState> InMemory(int64_t elements, at::ScalarType type, float value);
  // The same in a file inside `folder`; errors as MappedFile::Create's. REQUIRES: near_elements are
  // whole pages.
  static absl::StatusOr<FarState> InFile(const std::string& folder, int64_t elements,
                                         at::ScalarType type, float value,
                                         absl::string_view setting, int64_t near_elements = 0);

  const at::Tensor& tensor() const { return tensor_; }
  // Bytes from `offset` on. Unavailable: the disk fails. REQUIRES: they are not near.
  absl::Status Read(int64_t offset, absl::Span<std::byte> into) const;
  absl::Status Write(int64_t offset, absl::Span<const std::byte> from) const;

 private:
  at::Tensor tensor_;
  std::shared_ptr<MappedFile> file_;  // Null: in memory.
  int64_t near_bytes_ = 0;            // In front of the file.
};

}  // namespace dtrain
