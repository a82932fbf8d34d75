// How the weights of a checkpoint fit those of a run: by name and shape, and by type. Floats of
// another type fit, because they are converted while they are read (restore_reads.h). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "checkpoint/restore/reader.h"

namespace dtrain {

// Counts the tensors that are read in another type than they are stored in.
class Conversions {
 public:
  void Add(DType from, DType to) { counts_[{from, to}] += from == to ? 0 : 1; }
  // "; 12 tensors converted from bf16 to fp32", for each pair of types; "" for none.
  std::string Text() const;

 private:
  std::map<std::pair<DType, DType>, int64_t> counts_;
};

// The program's tensor as the model of `from` stores it: the same, or of another float type.
// NotFound: it holds none. InvalidArgument: of another shape, or of a type that is not converted.
absl::StatusOr<checkpoint::TensorSpec> StoredForm(const checkpoint::Checkpoint& from,
                                                  const checkpoint::TensorSpec& wanted);

// The type in which rank `rank` of `from` stores a tensor of its state that the program has as
// `wanted`: another one only if it is converted, else `wanted`.
DType StoredTypeOf(const checkpoint::Checkpoint& from, int rank, const std::string& name,
                   DType wanted);

// Compares the model of `from` with all tensors of the program's first engine. InvalidArgument
// lists those that it lacks and those that do not fit, and what it holds beside them. If that is
// all that differs, the list is in `unused`, "" for none.
absl::Status CheckWeightsFit(const checkpoint::Checkpoint& from,
                             absl::Span<const checkpoint::TensorSpec> wanted, std::string& unused);

}  // namespace dtrain
