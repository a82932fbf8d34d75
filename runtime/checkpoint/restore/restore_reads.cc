#include "runtime/checkpoint/restore/restore_reads.h"

#include <algorithm>
#include <cstddef>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/numeric/dtype.h"
#include "base/status.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/memory/state_memory.h"
#include "runtime/model/dtypes.h"

namespace dtrain {
namespace {

constexpr uint64_t kCopyBytesMax = 32 << 20;
constexpr int64_t kConvertElementsMax = 1 << 18;  // At once, for each makes temporary copies.

// The type of what is read for `target`.
at::ScalarType StoredType(const checkpoint::TensorSpec& stored, const at::Tensor& target) {
  const absl::StatusOr<DType> type = DTypeOf(target.scalar_type());
  if (!type.ok() || *type == stored.dtype) {
    return target.scalar_type();
  }
  const at::ScalarType read =
      stored.dtype == DType::kFloat64 ? at::kDouble : FloatTypeOf(stored.dtype);
  DT_CHECK(target.is_floating_point()) << stored.name;
  return read;
}

// Whether a type has no value as large as some of another one's.
bool IsNarrower(at::ScalarType type, at::ScalarType than) {
  return type != than && (type == at::kHalf || than == at::kDouble ||
                          (than == at::kFloat && type == at::kBFloat16));
}

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
  const at::ScalarType type = StoredType(stored, target);
  const uint64_t item_bytes = DTypeBytes(stored.dtype);
  const uint64_t offset = static_cast<uint64_t>(begin) * item_bytes;
  if (target.is_cpu() && target.is_contiguous() && type == target.scalar_type()) {
    return add(offset, BytesOf(target));
  }
  // A view of it as a row would be a copy if it is not contiguous, so then it is read as a whole.
  const bool contiguous = target.is_contiguous();
  // Its memory without its count of writes, by which an engine knows those of the program.
  const at::Tensor memory = target.variable_data();
  const at::Tensor row = contiguous ? memory.view({-1}) : memory;
  const int64_t elements = target.numel();
  const int64_t at_once = contiguous ? static_cast<int64_t>(kCopyBytesMax / item_bytes)
                                     : std::max<int64_t>(1, elements);
  for (int64_t at = 0; at < elements; at += at_once) {
    const at::Tensor part = contiguous ? row.narrow(0, at, std::min(at_once, elements - at)) : row;
    const uint64_t bytes = static_cast<uint64_t>(part.numel()) * item_bytes;
    if (copy_bytes_ + bytes > kCopyBytesMax && copy_bytes_ > 0) {
      DT_RETURN_IF_ERROR(Run());
    }
    DT_ASSIGN_OR_RETURN(const at::Tensor read, TakeMemory(part.sizes(), type, bytes));
    copies_.push_back({stored.name, read, part});
    DT_RETURN_IF_ERROR(
        add(offset + static_cast<uint64_t>(at) * item_bytes, BytesOf(copies_.back().read)));
  }
  return elements == 0 ? add(offset, {}) : absl::OkStatus();
}

// One piece of memory serves all copies, one after the other: a heap would keep what is given back
// to it, in pieces that the next copies may not fit.
absl::StatusOr<at::Tensor> RestoreReads::TakeMemory(at::IntArrayRef sizes, at::ScalarType type,
                                                    uint64_t bytes) {
  constexpr uint64_t kAlign = 64;
  if (bytes > kCopyBytesMax) {
    copy_bytes_ = kCopyBytesMax;
    return at::empty(sizes, at::TensorOptions(type));
  }
  if (!memory_.defined()) {
    DT_ASSIGN_OR_RETURN(memory_, MakeState(kCopyBytesMax / sizeof(float), at::kFloat, 0));
  }
  const at::Tensor taken =
      memory_.view(at::kByte)
          .narrow(0, static_cast<int64_t>(copy_bytes_), static_cast<int64_t>(bytes))
          .view(type)
          .view(sizes);
  copy_bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
  return taken;
}

absl::Status RestoreReads::CopyToTarget(const Copy& copy) const {
  if (!IsNarrower(copy.target.scalar_type(), copy.read.scalar_type())) {
    copy.target.copy_(copy.read);
    return absl::OkStatus();
  }
  const bool in_slices = copy.target.is_contiguous() && copy.target.dim() == 1;
  const int64_t elements = in_slices ? copy.target.numel() : 1;
  for (int64_t at = 0; at < elements; at += kConvertElementsMax) {
    const int64_t count = std::min(kConvertElementsMax, elements - at);
    const at::Tensor read = in_slices ? copy.read.narrow(0, at, count) : copy.read;
    const at::Tensor rounded = read.to(copy.target.scalar_type());
    const auto beyond =
        at::isinf(rounded).sum().item<int64_t>() - at::isinf(read).sum().item<int64_t>();
    if (beyond != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s has at least %d values that %s cannot hold; train it in %s",
          from_.DisplayName(), copy.name, beyond, DTypeName(*DTypeOf(copy.target.scalar_type())),
          copy.read.scalar_type() == at::kDouble ? "fp64" : "fp32"));
    }
    (in_slices ? copy.target.narrow(0, at, count) : copy.target).copy_(rounded);
  }
  return absl::OkStatus();
}

absl::Status RestoreReads::Run() {
  const at::NoGradGuard no_grad;
  absl::Status status = reads_.Run();
  for (const Copy& copy : copies_) {
    if (status.ok()) {
      status = CopyToTarget(copy);
    }
  }
  copies_.clear();
  copy_bytes_ = 0;
  return status;
}

}  // namespace dtrain
