#include "checkpoint/storage/storage.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/console/progress_line.h"
#include "base/status.h"
#include "base/threads/work_count.h"

namespace dtrain::checkpoint {

absl::Status Storage::MakeDirectories(absl::Span<const std::string> paths) {
  for (const std::string& path : paths) {
    DT_RETURN_IF_ERROR(MakeDirectory(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileCopy> Storage::OpenCopy(const std::string& path, size_t copy) {
  if (copy > 0) {
    return absl::OutOfRangeError(absl::StrCat(DisplayName(path), " has one copy"));
  }
  DT_ASSIGN_OR_RETURN(auto file, OpenFile(path));
  return FileCopy{std::move(file), DisplayName(path)};
}

absl::StatusOr<std::string> ReadSmallFile(Storage& storage, const std::string& path,
                                          uint64_t bytes_max) {
  DT_ASSIGN_OR_RETURN(const auto file, storage.OpenFile(path));
  if (file->bytes() > bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat(storage.DisplayName(path), " has ",
                                                     file->bytes(), " bytes; at most ", bytes_max,
                                                     " are allowed"));
  }
  std::string content(file->bytes(), '\0');
  DT_RETURN_IF_ERROR(file->ReadAt(
      0, absl::MakeSpan(reinterpret_cast<std::byte*>(content.data()), content.size())));
  WorkCount::Note();
  return content;
}

absl::Status RemoveTree(Storage& storage, const std::string& path) {
  const auto entries = storage.List(path);
  if (absl::IsNotFound(entries.status())) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(entries.status());
  absl::Status first;
  for (const Storage::Entry& entry : *entries) {
    const std::string child = absl::StrCat(path, "/", entry.name);
    first.Update(entry.is_directory ? RemoveTree(storage, child) : storage.RemoveFile(child));
  }
  first.Update(storage.RemoveDirectory(path));
  return first;
}

absl::Status CheckRoom(Storage& storage, uint64_t bytes, const std::string& what) {
  const std::optional<uint64_t> free = storage.FreeBytes();
  if (!free.has_value() || *free >= bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " takes ", FormatBytes(static_cast<double>(bytes)), " (", bytes,
                   " bytes), but only ", FormatBytes(static_cast<double>(*free)), " (", *free,
                   " bytes) are free there: make room, or write to another file system"));
}

}  // namespace dtrain::checkpoint
