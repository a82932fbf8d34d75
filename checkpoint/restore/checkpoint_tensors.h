// The bytes of a checkpoint's tensors and small files, read by ranges. Every block that is read is
// checked against its CRC-32C in the manifest. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

class CheckpointTensors {
 public:
  // REQUIRES: `storage` outlives this object.
  CheckpointTensors(Storage& storage, Manifest manifest)
      : storage_(storage), manifest_(std::move(manifest)) {}

  const Manifest& manifest() const { return manifest_; }
  // The checkpoint's folder in the form for people.
  std::string DisplayName() const { return storage_.DisplayName(manifest_.id.DirectoryName()); }

  // Bytes [offset, offset + into.size()) of manifest().tensors[tensor]. InvalidArgument names the
  // file and the block that is damaged.
  absl::Status Read(size_t tensor, uint64_t offset, absl::Span<std::byte> into);
  // Gives a tensor to `sink` in order, a block at a time.
  absl::Status Give(size_t tensor, ByteSink sink);

 private:
  absl::StatusOr<const SafetensorsReader*> Open(size_t file);

  Storage& storage_;
  const Manifest manifest_;
  std::map<size_t, std::unique_ptr<SafetensorsReader>> open_;  // By index in manifest_.files.
};

// Opens a file of a checkpoint so that each of its blocks is checked when it is read.
// InvalidArgument: missing, or of another size than the manifest says.
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenChecked(Storage& storage, StepId id,
                                                          const ManifestFile& file);

// Gives the bytes of `file` to `sink` in order, a block at a time.
absl::Status GiveFile(const ReadableFile& file, ByteSink sink);

}  // namespace dtrain::checkpoint
