// checkpoint::TensorReads into tensors. What lies in the memory of the host and has the stored type
// is read in place. The rest, such as memory of a GPU, is read into copies of at most 32 MiB
// together, which are copied to where they belong before more is read. So are floats of another
// type, which are converted on the way: exactly where the tensor's type holds all values of theirs,
// else rounded to nearest even, as updates round weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/restore/tensor_reads.h"

namespace dtrain {

class RestoreReads {
 public:
  // REQUIRES: `from` outlives this object.
  explicit RestoreReads(checkpoint::Checkpoint& from) : from_(from), reads_(from) {}

  checkpoint::Checkpoint& from() const { return from_; }

  // Asks for the elements of a stored tensor from element `begin` on, for `target`, row by row.
  // Errors as of checkpoint::TensorReads. `target` has its content when Run has returned. REQUIRES:
  // it has the stored type, or both are floats.
  absl::Status Model(const checkpoint::TensorSpec& stored, int64_t begin, const at::Tensor& target);
  absl::Status State(int rank, const checkpoint::TensorSpec& stored, int64_t begin,
                     const at::Tensor& target);
  // Asks that the files without tensors are compared with their checksums.
  void OtherFiles() { reads_.AddOtherFiles(); }
  // InvalidArgument besides: a value is beyond the type of its tensor.
  absl::Status Run();

 private:
  struct Copy {
    std::string name;
    at::Tensor read;
    at::Tensor target;
  };
  using Add = absl::FunctionRef<absl::Status(uint64_t offset, absl::Span<std::byte> into)>;
  absl::Status AskFor(const checkpoint::TensorSpec& stored, int64_t begin, const at::Tensor& target,
                      Add add);
  // Memory for a copy, until the next Run.
  absl::StatusOr<at::Tensor> TakeMemory(at::IntArrayRef sizes, at::ScalarType type, uint64_t bytes);
  absl::Status CopyToTarget(const Copy& copy) const;

  checkpoint::Checkpoint& from_;
  checkpoint::TensorReads reads_;
  std::vector<Copy> copies_;
  at::Tensor memory_;        // Made for the first copy.
  uint64_t copy_bytes_ = 0;  // So much of it is taken.
};

}  // namespace dtrain
