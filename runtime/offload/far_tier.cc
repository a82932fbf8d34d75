#include "runtime/offload/far_tier.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ATen/Functions.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/engine/state_memory.h"
#include "runtime/engine/tensor_over.h"

namespace dtrain {
absl::StatusOr<FarState> FarState::InMemory(int64_t elements, at::ScalarType type, float value) {
  FarState state;
  DT_ASSIGN_OR_RETURN(state.tensor_, MakeState(elements, type, value));
  return state;
}

absl::StatusOr<FarState> FarState::InFile(const std::string& folder, int64_t elements,
                                          at::ScalarType type, float value,
                                          absl::string_view setting) {
  FarState state;
  const size_t bytes = static_cast<size_t>(elements) * at::elementSize(type);
  DT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Create(folder, bytes, setting));
  state.file_ = std::make_shared<MappedFile>(std::move(file));
  state.tensor_ = TensorOver(state.file_, elements, type);
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
    const ssize_t got = pread(file_->fd(), into.data(), into.size(), offset);
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
    const ssize_t put = pwrite(file_->fd(), from.data(), from.size(), offset);
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
  sync_file_range(file_->fd(), begin, bytes, SYNC_FILE_RANGE_WRITE);
  return absl::OkStatus();
}

}  // namespace dtrain
