#include "runtime/offload/far_tier.h"

#include <cstring>
#include <utility>

#include "ATen/Functions.h"
#include "base/status.h"
#include "runtime/memory/state_memory.h"
#include "runtime/memory/tensor_over.h"
#include "runtime/offload/nameless_file.h"

namespace dtrain {
namespace {

constexpr char kStates[] = "optimizer states";

}  // namespace

absl::StatusOr<FarState> FarState::InMemory(int64_t elements, at::ScalarType type, float value) {
  FarState state;
  DT_ASSIGN_OR_RETURN(state.tensor_, MakeState(elements, type, value));
  return state;
}

absl::StatusOr<FarState> FarState::InFile(const std::string& folder, int64_t elements,
                                          at::ScalarType type, float value,
                                          absl::string_view setting, int64_t near_elements) {
  FarState state;
  state.near_bytes_ = near_elements * static_cast<int64_t>(at::elementSize(type));
  const size_t bytes = static_cast<size_t>(elements) * at::elementSize(type);
  DT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Create(folder, bytes, setting,
                                                          static_cast<size_t>(state.near_bytes_)));
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
  return ReadAt(file_->fd(), offset - near_bytes_, into, kStates);
}

absl::Status FarState::Write(int64_t offset, absl::Span<const std::byte> from) const {
  if (file_ == nullptr) {
    std::memcpy(static_cast<std::byte*>(tensor_.mutable_data_ptr()) + offset, from.data(),
                from.size());
    return absl::OkStatus();
  }
  return WriteAt(file_->fd(), offset - near_bytes_, from, kStates);
}

}  // namespace dtrain
