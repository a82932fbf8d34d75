#include "checkpoint/tools/export.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "checkpoint/tools/logical_tensors.h"
#include "checkpoint/tools/model_folder.h"
#include "checkpoint/tools/output_folder.h"

namespace dtrain::checkpoint {
namespace {

constexpr absl::string_view kModelFolder = "model/";
constexpr uint64_t kConfigTextBytesMax = 32 << 20;

// The model's tensors, by index in manifest.tensors.
struct Model {
  std::vector<size_t> tensors;
  std::vector<TensorSpec> specs;
  uint64_t bytes = 0;
  size_t left_out = 0;
};

absl::StatusOr<Model> ModelOf(const Manifest& manifest, std::optional<DType> to) {
  Model model;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    if (!absl::StartsWith(manifest.files[tensor.file].path, kModelFolder)) {
      continue;
    }
    if (!EngineOf(manifest, tensor.entry.name).empty()) {
      ++model.left_out;
      continue;
    }
    TensorSpec spec;
    spec.name = tensor.entry.name;
    DT_ASSIGN_OR_RETURN(spec.dtype, WrittenType(spec.name, tensor.entry.dtype, to));
    spec.shape.assign(tensor.entry.shape.begin(), tensor.entry.shape.end());
    model.bytes += TensorSize(spec);
    model.tensors.push_back(i);
    model.specs.push_back(std::move(spec));
  }
  return model;
}

// Whether a file of model/ holds weights, which are written anew.
bool IsOfWeights(absl::string_view path) {
  return absl::EndsWith(path, ".safetensors") || absl::EndsWith(path, ".safetensors.index.json");
}

absl::Status CopySmallFile(Storage& from, StepId id, const ManifestFile& file,
                           std::optional<DType> dtype, Storage& to) {
  const std::string name(absl::StripPrefix(file.path, kModelFolder));
  DT_ASSIGN_OR_RETURN(const auto opened, OpenChecked(from, id, file));
  if (dtype.has_value() && name == "config.json" && opened->bytes() <= kConfigTextBytesMax) {
    std::string text;
    DT_RETURN_IF_ERROR(GiveFile(*opened, [&](absl::Span<const std::byte> block) {
      text.append(reinterpret_cast<const char*>(block.data()), block.size());
      return absl::OkStatus();
    }));
    DT_ASSIGN_OR_RETURN(
        text,
        WithTypeInConfig(text, from.DisplayName(absl::StrCat(id.DirectoryName(), "/", file.path)),
                         *dtype));
    return WriteSmallFile(to, name, text, Access::kEveryone).status();
  }
  DT_ASSIGN_OR_RETURN(const auto created, to.CreateFile(name, opened->bytes(), Access::kEveryone));
  DT_RETURN_IF_ERROR(
      GiveFile(*opened, [&](absl::Span<const std::byte> block) { return created->Append(block); }));
  return created->Finish();
}

}  // namespace

absl::StatusOr<FolderExport> ExportToFolder(Storage& storage, CheckpointTensors& from,
                                            const std::string& out,
                                            const FolderExportOptions& options) {
  const Manifest& manifest = from.manifest();
  DT_ASSIGN_OR_RETURN(const Model model, ModelOf(manifest, options.dtype));
  DT_ASSIGN_OR_RETURN(const auto folder, OutputFolder::Create(out));
  uint64_t needed = model.bytes;
  for (const ManifestFile& file : manifest.files) {
    if (absl::StartsWith(file.path, kModelFolder) && !IsOfWeights(file.path)) {
      needed += file.checksum.bytes;
    }
  }
  DT_RETURN_IF_ERROR(CheckRoom(folder->storage(), needed, out));
  FolderExport result;
  result.tensors = model.specs.size();
  result.bytes = model.bytes;
  result.left_out = model.left_out;
  const auto bytes = [&](size_t index, ByteSink sink) {
    const size_t tensor = model.tensors[index];
    const auto give = [&](ByteSink block_sink) { return from.Give(tensor, block_sink); };
    return ConvertInto(model.specs[index].name, manifest.tensors[tensor].entry.dtype,
                       model.specs[index].dtype, give, sink);
  };
  DT_ASSIGN_OR_RETURN(result.files,
                      WriteWeights(folder->storage(), model.specs, bytes, options.shard_bytes_max));
  for (const ManifestFile& file : manifest.files) {
    if (absl::StartsWith(file.path, kModelFolder) && !IsOfWeights(file.path)) {
      DT_RETURN_IF_ERROR(
          CopySmallFile(storage, manifest.id, file, options.dtype, folder->storage()));
      ++result.files;
    }
  }
  DT_RETURN_IF_ERROR(folder->Publish());
  return result;
}

}  // namespace dtrain::checkpoint
