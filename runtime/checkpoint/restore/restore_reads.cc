#include "runtime/checkpoint/restore/restore_reads.h"

#include <algorithm>
#include <cstddef>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/check.h"
#include "base/numeric/dtype.h"
#include "base/status.h"
#include "runtime/checkpoint/model_tensors.h"

namespace dtrain {
namespace {

constexpr uint64_t kCopyBytesMax = 32 << 20;

}  // namespace

absl::Status RestoreReads::Model(const checkpoint::TensorSpec& stored, int64_t begin,
                                 const at::Tensor& target) {
  return AskFor(stored, begin, target, [&](uint64_t offset, absl::Span<std::byte> into) {
    return reads_.AddModel(stored, offset, into);
  });
}

absl::Status RestoreReads::State(int rank, const checkpoint::TensorSpec& stored, int64_t begin,
                                 const at::Tensor& target) {
  return AskFor(stored, begin, target, [&](uint64_t offset, absl::Span<std::byte> into) {
    return reads_.AddState(rank, stored, offset, into);
  });
}

absl::Status RestoreReads::AskFor(const checkpoint::TensorSpec& stored, int64_t begin,
                                  const at::Tensor& target, Add add) {
  const at::NoGradGuard no_grad;
  const auto item_bytes = static_cast<uint64_t>(target.itemsize());
  DT_CHECK(item_bytes == DTypeBytes(stored.dtype)) << stored.name;
  const uint64_t offset = static_cast<uint64_t>(begin) * item_bytes;
  if (target.is_cpu() && target.is_contiguous()) {
    return add(offset, BytesOf(target));
  }
  // A view of it as a row would be a copy if it is not contiguous, so then it is read as a whole.
  const bool contiguous = target.is_contiguous();
  const at::Tensor row = contiguous ? target.view({-1}) : target;
  const int64_t elements = target.numel();
  const int64_t at_once = contiguous ? static_cast<int64_t>(kCopyBytesMax / item_bytes)
                                     : std::max<int64_t>(1, elements);
  for (int64_t at = 0; at < elements; at += at_once) {
    const at::Tensor part =
        contiguous ? row.narrow(0, at, std::min(at_once, elements - at)) : target;
    if (copy_bytes_ + part.nbytes() > kCopyBytesMax && copy_bytes_ > 0) {
      DT_RETURN_IF_ERROR(Run());
    }
    copies_.push_back({at::empty(part.sizes(), at::TensorOptions(part.scalar_type())), part});
    copy_bytes_ += part.nbytes();
    DT_RETURN_IF_ERROR(
        add(offset + static_cast<uint64_t>(at) * item_bytes, BytesOf(copies_.back().read)));
  }
  return elements == 0 ? add(offset, {}) : absl::OkStatus();
}

absl::Status RestoreReads::Run() {
  const at::NoGradGuard no_grad;
  const absl::Status status = reads_.Run();
  for (const Copy& copy : copies_) {
    if (status.ok()) {
      copy.target.copy_(copy.read);
    }
  }
  copies_.clear();
  copy_bytes_ = 0;
  return status;
}

}  // namespace dtrain
