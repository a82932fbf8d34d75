// Writing a model in Hugging Face's form, and what its config.json says of types. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/numeric/dtype.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// The type that a tensor of type `dtype` is written in: `to` for floats, if there is one, else its
// own. Unimplemented for types that dtrain does not compute with.
absl::StatusOr<DType> WrittenType(const std::string& name, absl::string_view dtype,
                                  std::optional<DType> to);

// A sink that converts blocks of floats of type `from` to `to` and passes them on to `sink`.
// InvalidArgument: `to` has no value as large as one of the tensor `name`.
// REQUIRES: blocks hold whole elements.
absl::Status ConvertInto(const std::string& name, absl::string_view from, DType to,
                         absl::FunctionRef<absl::Status(ByteSink)> give, ByteSink sink);

// The bytes of one tensor.
uint64_t TensorSize(const TensorSpec& spec);

// Writes the tensors to model.safetensors, or to shards of at most `shard_bytes_max` with an index,
// at the root of `storage`. Returns the number of files.
absl::StatusOr<size_t> WriteWeights(Storage& storage, const std::vector<TensorSpec>& tensors,
                                    TensorBytesSource bytes, uint64_t shard_bytes_max);

// The text of a config.json with the types that it names replaced. InvalidArgument: it is no JSON.
absl::StatusOr<std::string> WithTypeInConfig(const std::string& text, absl::string_view file_name,
                                             DType dtype);

}  // namespace dtrain::checkpoint
