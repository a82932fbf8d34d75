#include "runtime/memory/state_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ATen/Functions.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/system/resource_limits.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {

absl::StatusOr<at::Tensor> MakeState(int64_t elements, at::ScalarType type, float value) {
  const size_t bytes = std::max<size_t>(1, static_cast<size_t>(elements) * at::elementSize(type));
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d bytes for optimizer states or journalled gradients: %s%s; a higher "
                        "zero_optimization.stage or more ranks take less on each",
                        bytes, std::strerror(error), LimitsBehind(error)));
  }
  madvise(data, bytes, MADV_HUGEPAGE);  // A hint: fewer page faults and TLB misses.
  const at::Tensor state = at::from_blob(
      data, {elements}, [bytes](void* memory) { munmap(memory, bytes); }, at::TensorOptions(type));
  if (value != 0) {
    state.fill_(value);
  }
  return state;
}

absl::StatusOr<at::Tensor> MakeStateOn(const Device& device, int64_t elements, at::ScalarType type,
                                       float value) {
  if (device.is_host()) {
    return MakeState(elements, type, value);
  }
  return at::full({elements}, value, at::TensorOptions(type).device(device.tensors()));
}

absl::StatusOr<at::Tensor> MakePinnedState(const Device& device, int64_t elements,
                                           at::ScalarType type, float value) {
  const size_t bytes = static_cast<size_t>(elements) * at::elementSize(type);
  DT_ASSIGN_OR_RETURN(std::shared_ptr<PinnedMemory> memory, PinnedMemory::Create(device, bytes));
  at::Tensor state = TensorOver(memory, elements, type);
  state.fill_(value);
  return state;
}

}  // namespace dtrain
