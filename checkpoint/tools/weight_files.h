// Weights that somebody else wrote: a model folder in Hugging Face's form, or one .safetensors
// file.
//
// Headers are parsed strictly and within bounded memory (hugging_face_folder.h). Links are followed
// inside the folder and into the blobs of a download cache, and refused elsewhere, because what
// they point to would be copied. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/hugging_face_folder.h"
#include "checkpoint/format/safetensors.h"

namespace dtrain::checkpoint {

class WeightFiles {
 public:
  // NotFound, InvalidArgument: no weights, or a file that is not what it should be; the message
  // names it.
  static absl::StatusOr<WeightFiles> Open(const std::string& path);

  // All tensors, sorted by name.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  // Gives the bytes of tensors()[index] to `sink` in order, a block at a time.
  absl::Status Give(size_t index, ByteSink sink) const;
  // The small files beside the weights that belong to a model, as {name, text}: config.json, the
  // tokenizer's and the like. Those that are not there are left out; a single file has none.
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> SmallFiles() const;

 private:
  WeightFiles() = default;

  std::string path_;
  std::optional<HuggingFaceFolder> folder_;
  std::unique_ptr<SafetensorsReader> file_;  // If the path is no folder.
  std::vector<TensorEntry> tensors_;
};

}  // namespace dtrain::checkpoint
