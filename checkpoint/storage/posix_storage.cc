#include "checkpoint/storage/posix_storage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/commit/nonce.h"
#include "checkpoint/storage/direct_file.h"

namespace dtrain::checkpoint {
namespace {

constexpr int kOwnerMode = 0600;
constexpr int kEveryoneMode = 0644;
constexpr size_t kProbeBytes = kWriteBlockBytes + 1;

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// "a" and "a/b" of "a/b".
std::vector<std::string> PrefixesOf(absl::Span<const std::string> paths) {
  std::vector<std::string> prefixes;
  for (const std::string& path : paths) {
    for (size_t slash = path.find('/'); slash != std::string::npos;
         slash = path.find('/', slash + 1)) {
      prefixes.push_back(path.substr(0, slash));
    }
    prefixes.push_back(path);
  }
  return prefixes;
}

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(FileSystem& files, int handle, std::string display_name)
      : files_(files), handle_(handle), display_name_(std::move(display_name)) {}
  PosixWritableFile(const PosixWritableFile&) = delete;
  PosixWritableFile& operator=(const PosixWritableFile&) = delete;
  ~PosixWritableFile() override {
    if (handle_ >= 0) {
      // An error is ignored, because nothing relies on a file without Finish.
      files_.Close(handle_).IgnoreError();
    }
  }

  absl::Status Append(absl::Span<const std::byte> data) override {
    return AppendBy(&FileSystem::Write, data);
  }
  absl::Status AppendHeld(absl::Span<const std::byte> data) override {
    return AppendBy(&FileSystem::WriteHeld, data);
  }

  bool collects() const override { return files_.Collects(handle_); }
  void EndAppending() override { files_.EndWriting(handle_); }

  absl::Status Sync() override { return Annotate(files_.Sync(handle_), display_name_); }

  absl::Status Finish() override {
    // A failed fsync drops the dirty pages: the file is lost, so it is never synced again.
    DT_RETURN_IF_ERROR(Annotate(files_.Sync(handle_), display_name_));
    return Annotate(files_.Close(std::exchange(handle_, -1)), display_name_);
  }

 private:
  using Write = absl::StatusOr<size_t> (FileSystem::*)(int handle, absl::Span<const std::byte>);
  absl::Status AppendBy(Write write, absl::Span<const std::byte> data) {
    while (!data.empty()) {
      absl::StatusOr<size_t> written = (files_.*write)(handle_, data);
      if (written.ok() && *written == 0) {
        written = absl::UnavailableError("cannot write: the system took 0 bytes");
      }
      if (!written.ok()) {
        return Annotate(written.status(), display_name_);
      }
      data.remove_prefix(*written);
    }
    return absl::OkStatus();
  }

  FileSystem& files_;
  int handle_;
  const std::string display_name_;
};

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(FileSystem& files, int handle, uint64_t bytes, std::string display_name)
      : files_(files), handle_(handle), bytes_(bytes), display_name_(std::move(display_name)) {}
  PosixReadableFile(const PosixReadableFile&) = delete;
  PosixReadableFile& operator=(const PosixReadableFile&) = delete;
  ~PosixReadableFile() override { files_.Close(handle_).IgnoreError(); }

  uint64_t bytes() const override { return bytes_; }

  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    const absl::StatusOr<size_t> got = files_.ReadAt(handle_, offset, into);
    if (!got.ok()) {
      return Annotate(got.status(), display_name_);
    }
    if (*got < into.size()) {
      return absl::OutOfRangeError(absl::StrCat(display_name_, " ends at byte ", offset + *got,
                                                "; ", into.size(), " bytes from ", offset,
                                                " were wanted"));
    }
    return absl::OkStatus();
  }

  absl::Status MakeDurable() const override {
    return Annotate(files_.Sync(handle_), display_name_);
  }
  void DropCache() const override { files_.DropCache(handle_); }
  void PassCache() const override { files_.PassCache(handle_); }
  void ReadAhead(uint64_t offset, uint64_t bytes) const override {
    if (offset < bytes_) {
      files_.ReadAhead(handle_, offset, std::min(bytes, bytes_ - offset));
    }
  }
  bool takes_small_reads() const override { return true; }

 private:
  FileSystem& files_;
  const int handle_;
  const uint64_t bytes_;
  const std::string display_name_;
};

class PosixStorage : public Storage {
 public:
  explicit PosixStorage(FileSystem& files) : files_(files) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> CreateFile(const std::string& path,
                                                           uint64_t bytes_expected,
                                                           Access access) override {
    DT_ASSIGN_OR_RETURN(const int handle,
                        files_.Create(path, access == Access::kOwner ? kOwnerMode : kEveryoneMode));
    auto file = std::make_unique<PosixWritableFile>(files_, handle, DisplayName(path));
    if (absl::Status status = files_.Allocate(handle, bytes_expected); !status.ok()) {
      file.reset();
      files_.Unlink(path).IgnoreError();
      // A quota and the limit of a file's size refuse as a full disk does, and have more room.
      const std::optional<uint64_t> free = files_.FreeBytes();
      return Annotate(status,
                      free.has_value() && *free < bytes_expected
                          ? absl::StrCat(DisplayName(path), ", where ", *free, " bytes are free")
                          : DisplayName(path));
    }
    return file;
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    uint64_t bytes = 0;
    DT_ASSIGN_OR_RETURN(const int handle, files_.OpenForReading(path, &bytes));
    return std::make_unique<PosixReadableFile>(files_, handle, bytes, DisplayName(path));
  }

  absl::Status Publish(const std::string& path, absl::string_view content) override {
    return WriteAndMove(path, content, /*replace=*/false);
  }
  absl::Status Replace(const std::string& path, absl::string_view content) override {
    return WriteAndMove(path, content, /*replace=*/true);
  }
  absl::Status MoveFile(const std::string& from, const std::string& to) override {
    DT_RETURN_IF_ERROR(files_.Rename(from, to));
    return files_.SyncDirectory(ParentOf(to));
  }

  absl::Status MakeDirectory(const std::string& path) override {
    DT_RETURN_IF_ERROR(MakeDirectories({path}));
    return SyncParents({path});
  }

  absl::Status MakeDirectories(absl::Span<const std::string> paths) override {
    for (const std::string& prefix : PrefixesOf(paths)) {
      const absl::Status status = files_.MakeDirectory(prefix);
      if (!status.ok() && !absl::IsAlreadyExists(status)) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status SyncParents(absl::Span<const std::string> paths) override {
    // Also of folders that were there, because their creator may not have synced them yet.
    std::vector<std::string> parents;
    for (const std::string& prefix : PrefixesOf(paths)) {
      const std::string parent = ParentOf(prefix);
      if (std::find(parents.begin(), parents.end(), parent) == parents.end()) {
        parents.push_back(parent);
        DT_RETURN_IF_ERROR(files_.SyncDirectory(parent));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SyncDirectory(const std::string& path) override {
    return files_.SyncDirectory(path);
  }
  absl::StatusOr<std::vector<Entry>> List(const std::string& path) override {
    return files_.List(path);
  }
  absl::Status RemoveFile(const std::string& path) override { return files_.Unlink(path); }
  absl::Status RemoveDirectory(const std::string& path) override {
    return files_.RemoveDirectory(path);
  }
  std::optional<uint64_t> FreeBytes() override { return files_.FreeBytes(); }
  bool reads_ahead() const override { return files_.ReadsAhead(); }
  size_t syncs_at_once() const override { return files_.SyncsAtOnce(); }

  absl::StatusOr<std::string> Probe() override {
    const std::string path = absl::StrCat(kTemporaryPrefix, "probe-", RandomNonce());
    // A block that is written like those of large files, and a rest.
    const std::string content(kProbeBytes, '\0');
    const absl::Status status = WriteWhole(path, content);
    const absl::Status removed = files_.Unlink(path);
    DT_RETURN_IF_ERROR(status);
    if (!absl::IsNotFound(removed)) {  // A commit of another process removes temporary files.
      DT_RETURN_IF_ERROR(removed);
    }
    return files_.SlowerWrites();
  }

  std::string DisplayName(const std::string& path) const override {
    return files_.DisplayName(path);
  }

 private:
  absl::Status WriteAndMove(const std::string& path, absl::string_view content, bool replace) {
    const std::string parent = ParentOf(path);
    const std::string name = parent.empty() ? path : path.substr(parent.size() + 1);
    const std::string temporary =
        absl::StrCat(parent, parent.empty() ? "" : "/", kTemporaryPrefix, name, "-", RandomNonce());
    absl::Status status = WriteWhole(temporary, content);
    if (status.ok()) {
      status = replace ? files_.Rename(temporary, path) : files_.RenameNoReplace(temporary, path);
    }
    if (!status.ok()) {
      files_.Unlink(temporary).IgnoreError();
      return status;
    }
    return files_.SyncDirectory(parent);
  }

  absl::Status WriteWhole(const std::string& path, absl::string_view content) {
    DT_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                        CreateFile(path, content.size(), Access::kEveryone));
    DT_RETURN_IF_ERROR(file->Append(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(content.data()), content.size())));
    return file->Finish();
  }

  FileSystem& files_;
};

class OwningPosixStorage final : public PosixStorage {
 public:
  explicit OwningPosixStorage(std::unique_ptr<FileSystem> files)
      : PosixStorage(*files), owned_(std::move(files)) {}

 private:
  const std::unique_ptr<FileSystem> owned_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Storage>> OpenPosixStorage(const std::string& directory) {
  DT_ASSIGN_OR_RETURN(auto files, OpenRealFileSystem(directory));
  return std::make_unique<OwningPosixStorage>(std::move(files));
}

std::unique_ptr<Storage> MakePosixStorage(FileSystem& files) {
  return std::make_unique<PosixStorage>(files);
}

}  // namespace dtrain::checkpoint
