#include "checkpoint/restore/checkpoint_tensors.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/checked_file.h"

namespace dtrain::checkpoint {
namespace {

// Files that are open at a time: a checkpoint of a thousand ranks has more than a process may open.
constexpr size_t kOpenMax = 64;

// Calls give(offset, span) for each block of `bytes` bytes and passes the span on to `sink`.
absl::Status GiveBlocks(uint64_t bytes, ByteSink sink,
                        absl::FunctionRef<absl::Status(uint64_t, absl::Span<std::byte>)> read) {
  std::vector<std::byte> block(std::min<uint64_t>(bytes, kBlockBytes));
  for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
    const auto part = absl::MakeSpan(block).subspan(0, std::min<uint64_t>(kBlockBytes, bytes - at));
    DT_RETURN_IF_ERROR(read(at, part));
    DT_RETURN_IF_ERROR(sink(part));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadableFile>> OpenChecked(Storage& storage, StepId id,
                                                          const ManifestFile& file) {
  const std::string path = absl::StrCat(id.DirectoryName(), "/", file.path);
  DT_RETURN_IF_ERROR(VerifyFile(storage, path, file.checksum, Verify::kSizes));
  DT_ASSIGN_OR_RETURN(auto opened, storage.OpenFile(path));
  return std::make_unique<CheckedFile>(std::move(opened), file.checksum, storage.DisplayName(path));
}

absl::Status GiveFile(const ReadableFile& file, ByteSink sink) {
  return GiveBlocks(file.bytes(), sink, [&](uint64_t offset, absl::Span<std::byte> into) {
    return file.ReadAt(offset, into);
  });
}

absl::StatusOr<const SafetensorsReader*> CheckpointTensors::Open(size_t file) {
  if (const auto found = open_.find(file); found != open_.end()) {
    return found->second.get();
  }
  if (open_.size() >= kOpenMax) {
    open_.clear();
  }
  const ManifestFile& listed = manifest_.files[file];
  DT_ASSIGN_OR_RETURN(auto opened, OpenChecked(storage_, manifest_.id, listed));
  DT_ASSIGN_OR_RETURN(
      auto reader, SafetensorsReader::Open(std::move(opened),
                                           storage_.DisplayName(absl::StrCat(
                                               manifest_.id.DirectoryName(), "/", listed.path))));
  return open_.emplace(file, std::make_unique<SafetensorsReader>(std::move(reader)))
      .first->second.get();
}

absl::Status CheckpointTensors::Read(size_t tensor, uint64_t offset, absl::Span<std::byte> into) {
  const ManifestTensor& listed = manifest_.tensors[tensor];
  DT_ASSIGN_OR_RETURN(const SafetensorsReader* reader, Open(listed.file));
  const absl::StatusOr<const TensorEntry*> entry = reader->Find(listed.entry.name);
  if (!entry.ok() || (*entry)->dtype != listed.entry.dtype ||
      (*entry)->shape != listed.entry.shape || (*entry)->begin != listed.entry.begin) {
    return absl::InvalidArgumentError(
        absl::StrCat(DisplayName(), "/", manifest_.files[listed.file].path, ": tensor ",
                     listed.entry.name, " is not where the manifest says"));
  }
  return reader->ReadRange(**entry, offset, into);
}

absl::Status CheckpointTensors::Give(size_t tensor, ByteSink sink) {
  return GiveBlocks(
      manifest_.tensors[tensor].entry.bytes(), sink,
      [&](uint64_t offset, absl::Span<std::byte> into) { return Read(tensor, offset, into); });
}

}  // namespace dtrain::checkpoint
