#include "checkpoint/storage/faulty_file_system.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain::checkpoint {

absl::Status FaultyFileSystem::Next(const std::string& what) {
  const int64_t call = calls_.fetch_add(1);
  if (call < plan_.at) {
    return absl::OkStatus();
  }
  switch (plan_.kind) {
    case FaultKind::kStop:
    case FaultKind::kTornStop:
      return absl::AbortedError(absl::StrCat(what, ": this process has been stopped"));
    case FaultKind::kSigkill:
      std::raise(SIGKILL);
      break;
    case FaultKind::kNoSpace:
      return call == plan_.at ? ErrnoStatus(ENOSPC, what) : absl::OkStatus();
    case FaultKind::kIoError:
    case FaultKind::kShortWrite:
      return call == plan_.at ? ErrnoStatus(EIO, what) : absl::OkStatus();
    case FaultKind::kBitRot:
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<int> FaultyFileSystem::Create(const std::string& path, int mode) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot create ", DisplayName(path))));
  return inner_.Create(path, mode);
}

absl::Status FaultyFileSystem::Allocate(int handle, uint64_t bytes) {
  DT_RETURN_IF_ERROR(Next("cannot reserve"));
  return inner_.Allocate(handle, bytes);
}

absl::StatusOr<size_t> FaultyFileSystem::Write(int handle, absl::Span<const std::byte> data) {
  return WriteBy(/*held=*/false, handle, data);
}

absl::StatusOr<size_t> FaultyFileSystem::WriteHeld(int handle, absl::Span<const std::byte> data) {
  DT_RETURN_IF_ERROR(Next("cannot reserve"));
  return WriteBy(/*held=*/true, handle, data);
}

absl::StatusOr<size_t> FaultyFileSystem::WriteBy(bool held, int handle,
                                                 absl::Span<const std::byte> data) {
  if (plan_.kind == FaultKind::kBitRot && calls_.load() == plan_.at && !data.empty()) {
    std::vector<std::byte> rotten(data.begin(), data.end());
    rotten[0] ^= std::byte{1};
    calls_.fetch_add(1);
    return inner_.Write(handle, rotten);
  }
  absl::Status status = Next("cannot write");
  if (full_.load()) {
    return ErrnoStatus(ENOSPC, "cannot write");
  }
  if (!status.ok()) {
    const bool first = calls_.load() == plan_.at + 1;
    const bool torn = plan_.kind == FaultKind::kTornStop;
    if (first && held && (torn || plan_.kind == FaultKind::kStop)) {
      std::vector<std::byte> room(data.size());  // It was reserved, and holds zeros.
      const size_t half = torn ? data.size() / 2 : data.size();
      std::copy(data.begin() + static_cast<ptrdiff_t>(half), data.end(),
                room.begin() + static_cast<ptrdiff_t>(half));
      inner_.Write(handle, room).IgnoreError();
    } else if (first && torn) {
      inner_.Write(handle, data.subspan(0, data.size() / 2)).IgnoreError();
    }
    if (first && plan_.kind == FaultKind::kShortWrite && data.size() > 1) {
      full_.store(true);
      return inner_.Write(handle, data.subspan(0, data.size() / 2));
    }
    return status;
  }
  return held ? inner_.WriteHeld(handle, data) : inner_.Write(handle, data);
}

absl::Status FaultyFileSystem::Sync(int handle) {
  DT_RETURN_IF_ERROR(Next("cannot make durable (fsync)"));
  return inner_.Sync(handle);
}

absl::Status FaultyFileSystem::Close(int handle) {
  const absl::Status status = Next("cannot close");
  const absl::Status closed = inner_.Close(handle);  // The descriptor goes away in any case.
  return status.ok() ? closed : status;
}

absl::StatusOr<int> FaultyFileSystem::OpenForReading(const std::string& path, uint64_t* bytes) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot open ", DisplayName(path))));
  return inner_.OpenForReading(path, bytes);
}

absl::StatusOr<size_t> FaultyFileSystem::ReadAt(int handle, uint64_t offset,
                                                absl::Span<std::byte> into) {
  DT_RETURN_IF_ERROR(Next("cannot read"));
  return inner_.ReadAt(handle, offset, into);
}

absl::Status FaultyFileSystem::MakeDirectory(const std::string& path) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot create the folder ", DisplayName(path))));
  return inner_.MakeDirectory(path);
}

absl::Status FaultyFileSystem::SyncDirectory(const std::string& path) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot make durable the folder ", DisplayName(path))));
  return inner_.SyncDirectory(path);
}

absl::Status FaultyFileSystem::RenameNoReplace(const std::string& from, const std::string& to) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot publish ", DisplayName(to))));
  return inner_.RenameNoReplace(from, to);
}

absl::Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot replace ", DisplayName(to))));
  return inner_.Rename(from, to);
}

absl::Status FaultyFileSystem::Unlink(const std::string& path) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot remove ", DisplayName(path))));
  return inner_.Unlink(path);
}

absl::Status FaultyFileSystem::RemoveDirectory(const std::string& path) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot remove ", DisplayName(path))));
  return inner_.RemoveDirectory(path);
}

absl::StatusOr<std::vector<Storage::Entry>> FaultyFileSystem::List(const std::string& path) {
  DT_RETURN_IF_ERROR(Next(absl::StrCat("cannot list ", DisplayName(path))));
  return inner_.List(path);
}

}  // namespace dtrain::checkpoint
