// Writes the model of a checkpoint as an ordinary Hugging Face folder. Every block that is read is
// checked against the manifest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/numeric/dtype.h"
#include "checkpoint/restore/checkpoint_tensors.h"

namespace dtrain::checkpoint {

struct FolderExportOptions {
  std::optional<DType> dtype;  // fp32, bf16 or fp16 for all floats; none: as they are.
  uint64_t shard_bytes_max = 5'000'000'000;
};

struct FolderExport {
  size_t tensors = 0;
  size_t files = 0;
  uint64_t bytes = 0;   // The size of the tensors.
  size_t left_out = 0;  // Tensors of engines after the first, which are no part of the model.
};

// Writes the first engine's tensors and the small files of model/ to the folder `out`, which
// appears whole or not at all. AlreadyExists: something is there. ResourceExhausted: no room; it
// names what is needed and what is free.
absl::StatusOr<FolderExport> ExportToFolder(Storage& storage, CheckpointTensors& from,
                                            const std::string& out,
                                            const FolderExportOptions& options);

}  // namespace dtrain::checkpoint
