// checkpoint::TensorReads into tensors. What lies in the memory of the host and has the stored type
// is read in place. The rest, such as memory of a GPU, is read into copies of at most 32 MiB
// together, which are copied to where they belong before more is read.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "checkpoint/restore/tensor_reads.h"

namespace dtrain {

class RestoreReads {
 public:
  // REQUIRES: `from` outlives this object.
  explicit RestoreReads(checkpoint::Checkpoint& from) : from_(from), reads_(from) {}

  checkpoint::Checkpoint& from() const { return from_; }

  // Asks for the elements of a stored tensor from element `begin` on, for `target`, row by row.
  // Errors as of checkpoint::TensorReads. `target` has its content when Run has returned. REQUIRES:
  // it has the stored type.
  absl::Status Model(const checkpoint::TensorSpec& stored, int64_t begin, const at::Tensor& target);
  absl::Status State(int rank, const checkpoint::TensorSpec& stored, int64_t begin,
                     const at::Tensor& target);
  // Asks that the files without tensors are compared with their checksums.
  void OtherFiles() { reads_.AddOtherFiles(); }
  absl::Status Run();

 private:
  struct Copy {
    at::Tensor read;
    at::Tensor target;
  };
  using Add = absl::FunctionRef<absl::Status(uint64_t offset, absl::Span<std::byte> into)>;
  absl::Status AskFor(const checkpoint::TensorSpec& stored, int64_t begin, const at::Tensor& target,
                      Add add);

  checkpoint::Checkpoint& from_;
  checkpoint::TensorReads reads_;
  std::vector<Copy> copies_;
  uint64_t copy_bytes_ = 0;
};

}  // namespace dtrain
