#include "checkpoint/format/safetensors.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text/text.h"

namespace dtrain::checkpoint {
namespace {

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Collects small pieces into blocks, passes large ones through, and hashes on the way.
class BlockWriter {
 public:
  explicit BlockWriter(WritableFile& file) : file_(file) {}

  absl::Status Append(absl::Span<const std::byte> data) {
    if (!file_.collects()) {
      checksum_.Add(data);
      return Collect(data);
    }
    while (!data.empty()) {
      const absl::Span<const std::byte> slice = data.subspan(0, kSliceBytes);
      checksum_.Add(slice);
      DT_RETURN_IF_ERROR(file_.Append(slice));
      data.remove_prefix(slice.size());
    }
    return absl::OkStatus();
  }

  // Gives the file all that was appended.
  absl::StatusOr<FileChecksum> End() {
    DT_RETURN_IF_ERROR(Flush());
    return checksum_.Finish();
  }

 private:
  absl::Status Collect(absl::Span<const std::byte> data) {
    while (!data.empty()) {
      if (block_.empty() && data.size() >= kBlockBytes) {
        DT_RETURN_IF_ERROR(file_.Append(data.subspan(0, kBlockBytes)));
        data.remove_prefix(kBlockBytes);
        continue;
      }
      const size_t n = std::min<size_t>(data.size(), kBlockBytes - block_.size());
      block_.insert(block_.end(), data.begin(), data.begin() + static_cast<ptrdiff_t>(n));
      data.remove_prefix(n);
      if (block_.size() == kBlockBytes) {
        DT_RETURN_IF_ERROR(Flush());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    absl::Status status = block_.empty() ? absl::OkStatus() : file_.Append(block_);
    block_.clear();
    return status;
  }

  WritableFile& file_;
  FileChecksummer checksum_;
  std::vector<std::byte> block_;
};

// Writes all of `pending.written.tensors`.
absl::Status WriteTensors(Storage& storage, const std::string& header,
                          const std::vector<size_t>& order, TensorBytesSource bytes, Access access,
                          PendingFile& pending) {
  const std::string& path = pending.written.path;
  const std::vector<TensorEntry>& entries = pending.written.tensors;
  const uint64_t data_bytes = entries.empty() ? 0 : entries.back().end;
  DT_ASSIGN_OR_RETURN(pending.file, storage.CreateFile(path, header.size() + data_bytes, access));
  BlockWriter writer(*pending.file);
  DT_RETURN_IF_ERROR(writer.Append(AsBytes(header)));
  for (size_t i = 0; i < entries.size(); ++i) {
    uint64_t given = 0;
    DT_RETURN_IF_ERROR(bytes(order[i], [&](absl::Span<const std::byte> data) {
      given += data.size();
      return given > entries[i].bytes() ? absl::OkStatus() : writer.Append(data);
    }));
    if (given != entries[i].bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat(storage.DisplayName(path), ": tensor ", entries[i].name, " came with ",
                       given, " bytes, its shape and dtype take ", entries[i].bytes()));
    }
  }
  DT_ASSIGN_OR_RETURN(pending.written.checksum, writer.End());
  pending.file->EndAppending();
  return absl::OkStatus();
}

// Removes what is left of a file that could not be written.
absl::Status GiveUp(Storage& storage, PendingFile& pending, const absl::Status& why) {
  pending.file.reset();
  if (!absl::IsAlreadyExists(why)) {
    storage.RemoveFile(pending.written.path).IgnoreError();
  }
  return why;
}

absl::StatusOr<TensorEntry> EntryFor(const TensorSpec& spec) {
  TensorEntry entry;
  entry.name = spec.name;
  entry.dtype = std::string(SafetensorsDType(spec.dtype));
  for (const int64_t dim : spec.shape) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", spec.name, " has the dimension ", dim, "; at least 0 is needed"));
    }
    entry.shape.push_back(static_cast<uint64_t>(dim));
  }
  return entry;
}

}  // namespace

absl::StatusOr<PendingFile> StartSafetensors(Storage& storage, const std::string& path,
                                             const std::vector<TensorSpec>& tensors,
                                             TensorBytesSource bytes, Access access) {
  PendingFile pending;
  WrittenFile& written = pending.written;
  written.path = path;
  absl::flat_hash_map<std::string, size_t> index;
  for (const TensorSpec& spec : tensors) {
    DT_ASSIGN_OR_RETURN(TensorEntry entry, EntryFor(spec));
    index[spec.name] = written.tensors.size();
    written.tensors.push_back(std::move(entry));
  }
  // transformers 4.x refuses a file without a known "format".
  absl::StatusOr<std::string> header = EncodeSafetensorsHeader({{"format", "pt"}}, written.tensors);
  if (!header.ok()) {
    return Annotate(header.status(), storage.DisplayName(path));
  }
  std::vector<size_t> order;
  for (const TensorEntry& entry : written.tensors) {
    order.push_back(index[entry.name]);
  }
  const absl::Status status = WriteTensors(storage, *header, order, bytes, access, pending);
  if (!status.ok()) {
    return GiveUp(storage, pending, status);
  }
  return pending;
}

absl::Status FinishFile(Storage& storage, PendingFile& pending) {
  if (pending.file == nullptr) {
    return absl::OkStatus();
  }
  const absl::Status finished = pending.file->Finish();
  pending.file.reset();
  if (!finished.ok()) {
    storage.RemoveFile(pending.written.path).IgnoreError();
  }
  return finished;
}

absl::StatusOr<WrittenFile> WriteSafetensors(Storage& storage, const std::string& path,
                                             const std::vector<TensorSpec>& tensors,
                                             TensorBytesSource bytes, Access access) {
  DT_ASSIGN_OR_RETURN(PendingFile pending, StartSafetensors(storage, path, tensors, bytes, access));
  DT_RETURN_IF_ERROR(FinishFile(storage, pending));
  return std::move(pending.written);
}

absl::StatusOr<PendingFile> StartSmallFile(Storage& storage, const std::string& path,
                                           absl::string_view content, Access access) {
  PendingFile pending;
  pending.written.path = path;
  const absl::Status status = [&]() -> absl::Status {
    DT_ASSIGN_OR_RETURN(pending.file, storage.CreateFile(path, content.size(), access));
    BlockWriter writer(*pending.file);
    DT_RETURN_IF_ERROR(writer.Append(AsBytes(content)));
    DT_ASSIGN_OR_RETURN(pending.written.checksum, writer.End());
    pending.file->EndAppending();
    return absl::OkStatus();
  }();
  if (!status.ok()) {
    return GiveUp(storage, pending, status);
  }
  return pending;
}

absl::StatusOr<WrittenFile> WriteSmallFile(Storage& storage, const std::string& path,
                                           absl::string_view content, Access access) {
  DT_ASSIGN_OR_RETURN(PendingFile pending, StartSmallFile(storage, path, content, access));
  DT_RETURN_IF_ERROR(FinishFile(storage, pending));
  return std::move(pending.written);
}

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(std::unique_ptr<ReadableFile> file,
                                                          const std::string& display_name,
                                                          uint64_t header_bytes_max) {
  const auto parse = [&]() -> absl::StatusOr<SafetensorsHeader> {
    const uint64_t file_bytes = file->bytes();
    std::string text(std::min<uint64_t>(8, file_bytes), '\0');
    const auto fill = [&](uint64_t offset) {
      return file->ReadAt(offset,
                          absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
    };
    DT_RETURN_IF_ERROR(fill(0));
    DT_ASSIGN_OR_RETURN(const uint64_t length, ParseSafetensorsLength(text, file_bytes));
    if (length > header_bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat("header too large: ", length, " bytes; ",
                                                     header_bytes_max, " are allowed here"));
    }
    text.resize(length);
    DT_RETURN_IF_ERROR(fill(8));
    return ParseSafetensorsHeader(text, file_bytes);
  };
  absl::StatusOr<SafetensorsHeader> header = parse();
  if (!header.ok()) {
    // A checked file names itself; a tensor's name may hold what controls a terminal.
    const absl::Status status(header.status().code(),
                              Printable(std::string(header.status().message())));
    return absl::StartsWith(status.message(), display_name) ? status
                                                            : Annotate(status, display_name);
  }
  SafetensorsReader reader;
  reader.file_ = std::move(file);
  reader.display_name_ = display_name;
  reader.header_ = *std::move(header);
  for (const std::string& warning : reader.header_.warnings) {
    DT_LOG(Warning) << display_name << ": " << warning;
  }
  for (size_t i = 0; i < reader.header_.tensors.size(); ++i) {
    reader.index_[reader.header_.tensors[i].name] = i;
  }
  return reader;
}

absl::StatusOr<const TensorEntry*> SafetensorsReader::Find(absl::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    return absl::NotFoundError(absl::StrCat(display_name_, " holds no tensor ", name));
  }
  return &header_.tensors[found->second];
}

absl::Status SafetensorsReader::Read(const TensorEntry& entry, absl::Span<std::byte> into) const {
  if (into.size() != entry.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(display_name_, ": tensor ", entry.name, " has ",
                                                   entry.bytes(), " bytes; the buffer has ",
                                                   into.size()));
  }
  return file_->ReadAt(header_.data_begin + entry.begin, into);
}

absl::Status SafetensorsReader::ReadRange(const TensorEntry& entry, uint64_t offset,
                                          absl::Span<std::byte> into) const {
  if (offset > entry.bytes() || into.size() > entry.bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat(display_name_, ": tensor ", entry.name, " has ",
                                              entry.bytes(), " bytes, not ", into.size(),
                                              " from byte ", offset));
  }
  return file_->ReadAt(header_.data_begin + entry.begin + offset, into);
}

}  // namespace dtrain::checkpoint
