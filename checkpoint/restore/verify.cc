#include "checkpoint/restore/verify.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device_error.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/storage/block_reader.h"

namespace dtrain::checkpoint {
namespace {

// So many of several hosts read and check their files at a time.
constexpr size_t kHostsAtOnce = 16;

absl::Status Damaged(const std::string& display_name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(display_name, " is damaged: ", what));
}

}  // namespace

absl::Status CheckGoesOn(const std::atomic<bool>* gives_up, absl::string_view work) {
  return gives_up != nullptr && *gives_up
             ? absl::CancelledError(
                   absl::StrCat("the ", work, " is given up, because its process ends"))
             : absl::OkStatus();
}

absl::StatusOr<Manifest> ReadManifest(Storage& storage, StepId id) {
  const std::string path = absl::StrCat(id.DirectoryName(), "/", kManifestName);
  DT_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(storage, path, kManifestBytesMax));
  const std::string display_name = storage.DisplayName(path);
  DT_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(text, display_name));
  if (manifest.id != id) {
    return absl::InvalidArgumentError(absl::StrCat(
        display_name, " is the manifest of ", manifest.id.ToString(), ": was the folder moved?"));
  }
  return manifest;
}

namespace {

absl::Status WrongBlock(const std::string& display_name, size_t block, uint32_t crc,
                        const FileChecksum& expected) {
  const uint64_t at = block * kBlockBytes;
  return Damaged(
      display_name,
      absl::StrFormat("bytes %d to %d have CRC-32C %08x, the manifest says %08x", at,
                      std::min(at + kBlockBytes, expected.bytes), crc, expected.crc32c[block]));
}

// InvalidArgument names the first block in which `found`, of a file of the right size, differs.
absl::Status CompareChecksums(const std::string& display_name, const FileChecksum& found,
                              const FileChecksum& expected) {
  if (found.crc32c.size() != expected.crc32c.size()) {
    return Damaged(display_name, absl::StrCat("it has checksums of ", found.crc32c.size(),
                                              " blocks, the manifest of ", expected.crc32c.size()));
  }
  for (size_t block = 0; block < expected.crc32c.size(); ++block) {
    if (found.crc32c[block] != expected.crc32c[block]) {
      return WrongBlock(display_name, block, found.crc32c[block], expected);
    }
  }
  return found.xxh3_128 == expected.xxh3_128
             ? absl::OkStatus()
             : Damaged(display_name, absl::StrCat("its XXH3-128 is ", found.xxh3_128,
                                                  ", the manifest says ", expected.xxh3_128));
}

// VerifyFile for the copy that the storage gives.
absl::Status VerifyCopy(Storage& storage, const std::string& path, const FileChecksum& expected,
                        Verify verify, bool from_medium, const std::atomic<bool>* gives_up) {
  DT_RETURN_IF_ERROR(CheckGoesOn(gives_up, "verification"));
  const auto opened = storage.OpenFile(path);
  const std::string display_name = storage.DisplayName(path);  // It names the copy that is opened.
  if (absl::IsNotFound(opened.status())) {
    return Damaged(display_name, "the file is missing");
  }
  DT_RETURN_IF_ERROR(opened.status());
  const ReadableFile& file = **opened;
  if (file.bytes() != expected.bytes) {
    return Damaged(display_name, absl::StrCat("it has ", file.bytes(), " bytes, the manifest says ",
                                              expected.bytes));
  }
  if (verify == Verify::kSizes) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const std::optional<FileChecksum> far, file.FarChecksum(from_medium));
  if (far.has_value()) {
    return CompareChecksums(display_name, *far, expected);
  }
  if (from_medium) {
    file.DropCache();
  }
  if (expected.bytes >= kBlockBytes) {  // The cache is for what training reads.
    file.PassCache();
  }
  FileChecksummer checksummer;
  BlockReader blocks(file, expected.bytes);
  for (uint64_t at = 0; at < expected.bytes; at += kBlockBytes) {
    DT_RETURN_IF_ERROR(CheckGoesOn(gives_up, "verification"));
    DT_ASSIGN_OR_RETURN(const absl::Span<const std::byte> part, blocks.Next());
    checksummer.Add(part);
    const size_t block = at / kBlockBytes;
    if (part.size() == kBlockBytes && checksummer.blocks()[block] != expected.crc32c[block]) {
      return WrongBlock(display_name, block, checksummer.blocks()[block], expected);
    }
  }
  return CompareChecksums(display_name, checksummer.Finish(), expected);
}

}  // namespace

absl::Status VerifyFile(Storage& storage, const std::string& path, const FileChecksum& expected,
                        Verify verify, bool from_medium, const std::atomic<bool>* gives_up) {
  while (true) {
    const absl::Status status = VerifyCopy(storage, path, expected, verify, from_medium, gives_up);
    // Where a disk cannot read a sector, another copy may be whole too.
    if (!absl::IsInvalidArgument(status) && !IsDeviceError(status)) {
      return status;
    }
    DT_ASSIGN_OR_RETURN(const bool dropped, storage.DropDamaged(path));
    if (!dropped) {
      return status;
    }
    DT_LOG(Warning) << status.message() << "; this copy is removed, and another one is used";
  }
}

absl::Status VerifyFiles(Storage& storage, const Manifest& manifest, Verify verify,
                         const std::atomic<bool>* gives_up) {
  return ForEachAtOnce(
      manifest.files.size(),
      [&](uint64_t i) {
        const ManifestFile& file = manifest.files[i];
        return VerifyFile(storage, absl::StrCat(manifest.id.DirectoryName(), "/", file.path),
                          file.checksum, verify, /*from_medium=*/false, gives_up);
      },
      std::min(storage.hosts(), kHostsAtOnce));
}

absl::StatusOr<std::vector<StepId>> ListCheckpoints(Storage& storage) {
  DT_ASSIGN_OR_RETURN(const auto entries, storage.List(""));
  std::vector<StepId> ids;
  for (const Storage::Entry& entry : entries) {
    const std::optional<StepId> id = StepId::FromDirectoryName(entry.name);
    if (!id || !entry.is_directory) {
      continue;
    }
    const auto inside = storage.List(entry.name);
    if (absl::IsNotFound(inside.status())) {
      continue;  // The checkpoint was removed meanwhile.
    }
    DT_RETURN_IF_ERROR(inside.status());
    if (std::any_of(inside->begin(), inside->end(),
                    [](const Storage::Entry& file) { return file.name == kManifestName; })) {
      ids.push_back(*id);
    }
  }
  std::sort(ids.begin(), ids.end(), std::greater<>());
  return ids;
}

}  // namespace dtrain::checkpoint
