// A model folder in Hugging Face's form: config.json beside model.safetensors, or beside shards
// that model.safetensors.index.json names.
//
// Files come from other people, so sizes are limited before memory is allocated (a header 100 MB,
// all headers of a folder 128 MB and a million tensors, the index and config.json 32 MB): reading
// the largest header takes 512 MiB of memory. Names in the index cannot lead out of the folder, and
// headers are parsed strictly. Thread-safe after Open.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "checkpoint/format/safetensors.h"

namespace dtrain::checkpoint {

inline constexpr uint64_t kModelJsonBytesMax = 32 << 20;
inline constexpr uint64_t kModelHeaderBytesMax = 128 << 20;

class HuggingFaceFolder {
 public:
  // Opens the files and reads their headers, no values. Errors name the file and what is wrong: no
  // weights, a malformed header, a tensor that the index promises and its file lacks, a tensor in
  // two files.
  static absl::StatusOr<HuggingFaceFolder> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  // All tensors by name.
  const std::map<absl::string_view, const TensorEntry*>& tensors() const { return tensors_; }
  // Bytes [offset, offset + into.size()) of a tensor. NotFound, OutOfRange.
  absl::Status Read(const std::string& name, uint64_t offset, absl::Span<std::byte> into) const;

 private:
  HuggingFaceFolder() = default;
  absl::Status AddFile(const std::string& name);
  absl::Status OpenShards(const std::string& index_name, const std::string& text);

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  uint64_t header_bytes_ = 0;
  // Keys point to the names in the files' headers, of which there may be 100 MB, so they are not
  // copied.
  std::map<absl::string_view, const TensorEntry*> tensors_;
  std::map<absl::string_view, size_t> file_of_;  // Tensor -> index in files_.
};

// DIRECTORY/config.json, or the file itself when `path` is no folder.
absl::StatusOr<Json> ReadModelJson(const std::string& path);

}  // namespace dtrain::checkpoint
