#include "runtime/plan/config/batch_algebra.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kBatchMax = int64_t{1} << 31;  // Products of two still fit 64 bits.

std::string Text(const std::optional<int64_t>& value) {
  return value ? absl::StrFormat("%d", *value) : "unset";
}

// "train_batch_size 500, train_micro_batch_size_per_gpu 4, ...": every error ends with all four.
std::string AllFour(const BatchRequest& request, int64_t world_size) {
  return absl::StrFormat(
      "train_batch_size %s, train_micro_batch_size_per_gpu %s, gradient_accumulation_steps %s, "
      "world size %d",
      Text(request.train_batch), Text(request.micro_batch), Text(request.accumulation), world_size);
}

// The multiples of `unit` on both sides of `value`.
std::string Nearest(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? absl::StrFormat("%d", unit)
                    : absl::StrFormat("%d or %d", below, below + unit);
}

absl::Status NotMultiple(const BatchRequest& request, int64_t world_size,
                         const std::string& unit_is, int64_t unit) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "train_batch_size %d is not a multiple of %s = %d; nearest: %s (%s)", *request.train_batch,
      unit_is, unit, Nearest(*request.train_batch, unit), AllFour(request, world_size)));
}

absl::Status CheckRange(const char* name, const std::optional<int64_t>& value,
                        const BatchRequest& request, int64_t world_size) {
  if (value && (*value < 1 || *value > kBatchMax)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is %d; it must be from 1 to 2^31 (%s)",
                                                      name, *value, AllFour(request, world_size)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BatchSizes> SolveBatch(const BatchRequest& request, int64_t world_size) {
  DT_CHECK_GE(world_size, 1);
  for (const absl::Status& status :
       {CheckRange("train_batch_size", request.train_batch, request, world_size),
        CheckRange("train_micro_batch_size_per_gpu", request.micro_batch, request, world_size),
        CheckRange("gradient_accumulation_steps", request.accumulation, request, world_size)}) {
    if (!status.ok()) {
      return status;
    }
  }
  if (!request.train_batch && !request.micro_batch) {
    return absl::InvalidArgumentError(
        absl::StrFormat("set train_batch_size or train_micro_batch_size_per_gpu (%s)",
                        AllFour(request, world_size)));
  }
  BatchSizes sizes{request.train_batch.value_or(0), request.micro_batch.value_or(0),
                   request.accumulation.value_or(1)};
  if (!request.train_batch) {
    if (__builtin_mul_overflow(sizes.micro_batch, sizes.accumulation, &sizes.train_batch) ||
        __builtin_mul_overflow(sizes.train_batch, world_size, &sizes.train_batch) ||
        sizes.train_batch > kBatchMax) {
      return absl::InvalidArgumentError(absl::StrFormat("the global batch is larger than 2^31 (%s)",
                                                        AllFour(request, world_size)));
    }
    return sizes;
  }
  if (!request.micro_batch) {
    const int64_t unit = sizes.accumulation * world_size;
    if (sizes.train_batch % unit != 0) {
      return NotMultiple(
          request, world_size,
          absl::StrFormat("accumulation %d x %d ranks", sizes.accumulation, world_size), unit);
    }
    sizes.micro_batch = sizes.train_batch / unit;
    return sizes;
  }
  const int64_t row = sizes.micro_batch * world_size;
  if (sizes.train_batch % row != 0) {
    return NotMultiple(request, world_size,
                       absl::StrFormat("micro-batch %d x %d ranks", sizes.micro_batch, world_size),
                       row);
  }
  if (!request.accumulation) {
    sizes.accumulation = sizes.train_batch / row;
  }
  if (sizes.train_batch / row != sizes.accumulation) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "train_batch_size %d is not micro-batch %d x accumulation %d x %d ranks = %d; set "
        "train_batch_size %d, or gradient_accumulation_steps %d (%s)",
        sizes.train_batch, sizes.micro_batch, sizes.accumulation, world_size,
        row * sizes.accumulation, row * sizes.accumulation, sizes.train_batch / row,
        AllFour(request, world_size)));
  }
  return sizes;
}

}  // namespace dtrain::plan
