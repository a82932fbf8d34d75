// safetensors files on a Storage: written as a stream, read by ranges.
//
// The writer's output equals safetensors.torch.save byte for byte. Nothing is mapped: a file that
// is cut while it is read gives a Status, not a signal. Not thread-safe, except where said.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/format/safetensors_header.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

// The name, type and shape of a tensor.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;  // Row-major; [] is a scalar.
};

// A written file, as it is recorded in the manifest.
struct WrittenFile {
  std::string path;  // Relative to the storage's root.
  FileChecksum checksum;
  std::vector<TensorEntry> tensors;  // In offset order.
};

// Takes the next bytes of a tensor; they need not stay after the call.
using ByteSink = absl::FunctionRef<absl::Status(absl::Span<const std::byte>)>;
// Gives the bytes of tensor `index` of the list passed along to `sink`, in order and in any number
// of parts, and returns the sink's first error. Called once for each tensor, in offset order.
using TensorBytesSource = absl::FunctionRef<absl::Status(size_t index, ByteSink sink)>;

// Writes `tensors` to a new file at `path` and makes its content durable (the caller syncs the
// folder). Blocks of at least 4 MiB reach a storage that does not collect them itself. On an error
// the file is removed; the message names it.
absl::StatusOr<WrittenFile> WriteSafetensors(Storage& storage, const std::string& path,
                                             const std::vector<TensorSpec>& tensors,
                                             TensorBytesSource bytes, Access access);

// A new file that has all its bytes, and is durable once FinishFile has returned OK. Until then the
// storage may be at work on it, while its owner writes the next one.
struct PendingFile {
  WrittenFile written;
  std::unique_ptr<WritableFile> file;  // Null: it is durable.
};
absl::StatusOr<PendingFile> StartSafetensors(Storage& storage, const std::string& path,
                                             const std::vector<TensorSpec>& tensors,
                                             TensorBytesSource bytes, Access access);
// On an error the file is removed.
absl::Status FinishFile(Storage& storage, PendingFile& pending);

// A small file the same way.
absl::StatusOr<PendingFile> StartSmallFile(Storage& storage, const std::string& path,
                                           absl::string_view content, Access access);
absl::StatusOr<WrittenFile> WriteSmallFile(Storage& storage, const std::string& path,
                                           absl::string_view content, Access access);

// An open safetensors file. Read is thread-safe when the file's ReadAt is.
class SafetensorsReader {
 public:
  // `header_bytes_max`: limit on the header of files from other people, checked before memory is
  // allocated for it.
  static absl::StatusOr<SafetensorsReader> Open(
      std::unique_ptr<ReadableFile> file, const std::string& display_name,
      uint64_t header_bytes_max = kSafetensorsHeaderBytesMax);

  const SafetensorsHeader& header() const { return header_; }
  // NotFound names the tensor and the file.
  absl::StatusOr<const TensorEntry*> Find(absl::string_view name) const;
  // REQUIRES: into.size() == entry.bytes().
  absl::Status Read(const TensorEntry& entry, absl::Span<std::byte> into) const;
  // The bytes [offset, offset + into.size()) of a tensor; OutOfRange when it has fewer.
  absl::Status ReadRange(const TensorEntry& entry, uint64_t offset,
                         absl::Span<std::byte> into) const;

 private:
  SafetensorsReader() = default;
  std::unique_ptr<ReadableFile> file_;
  std::string display_name_;
  SafetensorsHeader header_;
  absl::flat_hash_map<absl::string_view, size_t> index_;  // Names are those of header_.
};

}  // namespace dtrain::checkpoint
