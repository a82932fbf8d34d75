#include "runtime/offload/far_tier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/engine/state_memory.h"

namespace dtrain {
namespace {

absl::Status FileError(int error, const std::string& what) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      absl::StrCat(what, ": ", std::strerror(error)));
}

// A file without a name. File systems that cannot make one get a file whose name is removed at
// once.
absl::StatusOr<UniqueFd> NamelessFile(const std::string& folder) {
  UniqueFd file(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = folder + "/dtrain-states-XXXXXX";
    file = UniqueFd(mkostemp(name.data(), O_CLOEXEC));
    if (file.valid()) {
      unlink(name.c_str());
    }
  }
  if (!file.valid()) {
    return FileError(errno, absl::StrFormat("zero_optimization.offload_optimizer.nvme_path \"%s\": "
                                            "no file can be made there (want a folder that exists "
                                            "on every host)",
                                            folder));
  }
  return file;
}

}  // namespace

absl::StatusOr<FarState> FarState::InMemory(int64_t elements, at::ScalarType type, float value) {
  FarState state;
  DT_ASSIGN_OR_RETURN(state.tensor_, MakeState(elements, type, value));
  return state;
}

absl::StatusOr<FarState> FarState::InFile(const std::string& folder, int64_t elements,
                                          at::ScalarType type, float value) {
  FarState state;
  DT_ASSIGN_OR_RETURN(UniqueFd file, NamelessFile(folder));
  state.file_ = std::make_shared<UniqueFd>(std::move(file));
  const size_t bytes = std::max<size_t>(1, static_cast<size_t>(elements) * at::elementSize(type));
  // A page of a hole would fault into a full disk while it is written through the mapping.
  if (const int error = posix_fallocate(state.file_->get(), 0, static_cast<off_t>(bytes));
      error != 0) {
    return FileError(
        error, absl::StrFormat("zero_optimization.offload_optimizer.nvme_path \"%s\": %d bytes "
                               "for one optimizer state of this rank cannot be reserved",
                               folder, bytes));
  }
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, state.file_->get(), 0);
  if (data == MAP_FAILED) {
    return FileError(errno, absl::StrFormat("mapping %d bytes in %s", bytes, folder));
  }
  state.tensor_ = at::from_blob(
      data, {elements}, [bytes, file = state.file_](void* memory) { munmap(memory, bytes); },
      at::TensorOptions(type));
  if (value != 0) {
    state.tensor_.fill_(value);
  }
  return state;
}

absl::Status FarState::Read(int64_t offset, absl::Span<std::byte> into) const {
  if (file_ == nullptr) {
    std::memcpy(into.data(), static_cast<const std::byte*>(tensor_.const_data_ptr()) + offset,
                into.size());
    return absl::OkStatus();
  }
  while (!into.empty()) {
    const ssize_t got = pread(file_->get(), into.data(), into.size(), offset);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return absl::UnavailableError(
          absl::StrFormat("reading optimizer states at byte %d of their file: %s", offset,
                          got == 0 ? "it is shorter than it was made" : std::strerror(errno)));
    }
    into.remove_prefix(static_cast<size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status FarState::Write(int64_t offset, absl::Span<const std::byte> from) const {
  if (file_ == nullptr) {
    std::memcpy(static_cast<std::byte*>(tensor_.mutable_data_ptr()) + offset, from.data(),
                from.size());
    return absl::OkStatus();
  }
  const int64_t begin = offset;
  const auto bytes = static_cast<int64_t>(from.size());
  while (!from.empty()) {
    const ssize_t put = pwrite(file_->get(), from.data(), from.size(), offset);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put <= 0) {
      return absl::UnavailableError(
          absl::StrFormat("writing optimizer states at byte %d of their file: %s", offset,
                          std::strerror(put == 0 ? ENOSPC : errno)));
    }
    from.remove_prefix(static_cast<size_t>(put));
    offset += put;
  }
  // Towards the disk at once: dirty pages would otherwise fill memory until the kernel stalls us.
  sync_file_range(file_->get(), begin, bytes, SYNC_FILE_RANGE_WRITE);
  return absl::OkStatus();
}

}  // namespace dtrain
