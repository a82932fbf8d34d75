#include "comm/compression/power_sgd_reduction.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/compression/low_rank.h"
#include "comm/compression/low_rank_plan.h"

namespace dtrain::comm {

PowerSgdReduction::PowerSgdReduction(Group& group, const BucketShape& shape,
                                     const CompressionOptions& options)
    : group_(group),
      name_(shape.name),
      rank_(options.rank),
      error_feedback_(options.error_feedback),
      seed_(options.seed) {
  const auto rank = static_cast<size_t>(rank_);
  size_t p = 0;
  size_t q = 0;
  size_t memory = 0;
  const LowRankPlan plan = PlanLowRank(shape, rank_);
  for (const BucketTensor& tensor : plan.factored) {
    factored_.push_back({tensor, p, q, memory});
    p += rank * tensor.rows;
    q += rank * tensor.columns;
    memory += tensor.elements();
  }
  for (const LowRankPlan::Whole& whole : plan.wholes) {
    wholes_.push_back({.start = whole.start, .count = whole.count, .place = p});
    p += whole.count;
  }
  first_.resize(p);
  q_.resize(q);
  own_q_.resize(q);
  memory_.resize(memory);
  Forget();
}

void PowerSgdReduction::RenewColumn(float* column, size_t count) {
  FillDirection(seed_, ++renewals_, column, count);
}

void PowerSgdReduction::Forget() {
  std::fill(memory_.begin(), memory_.end(), 0.0F);
  for (const Factored& f : factored_) {
    for (size_t k = 0; k < static_cast<size_t>(rank_); ++k) {
      RenewColumn(q_.data() + f.q + k * f.tensor.columns, f.tensor.columns);
    }
  }
}

absl::StatusOr<Work> PowerSgdReduction::Sum(std::vector<float>& values, const char* what) {
  return group_.AllReduce({values.data(), values.size() * sizeof(float), DType::kFloat32, {}},
                          ReduceOp::kSum, {.name = absl::StrCat(what, name_)});
}

absl::Status PowerSgdReduction::Start(absl::Span<float> data, int64_t /*step*/) {
  data_ = data;
  second_ = false;
  for (const Factored& f : factored_) {
    // From here on the memory holds the matrix: this step's gradient plus the earlier error.
    float* const matrix = memory_.data() + f.memory;
    AddTo(data.data() + f.tensor.start, f.tensor.elements(), matrix);
    Multiply({matrix, f.tensor.rows, f.tensor.columns}, q_.data() + f.q, rank_,
             first_.data() + f.p);
  }
  for (const Whole& whole : wholes_) {
    std::copy_n(data.data() + whole.start, whole.count, first_.data() + whole.place);
  }
  DT_ASSIGN_OR_RETURN(work_, Sum(first_, "P of "));
  return absl::OkStatus();
}

absl::StatusOr<bool> PowerSgdReduction::Advance() {
  DT_RETURN_IF_ERROR(work_.Wait());
  if (second_ || factored_.empty()) {
    Finish();
    return true;
  }
  second_ = true;
  DT_RETURN_IF_ERROR(StartSecond());
  return false;
}

absl::Status PowerSgdReduction::StartSecond() {
  for (const Factored& f : factored_) {
    float* const p = first_.data() + f.p;
    Orthogonalize(p, f.tensor.rows, rank_);
    MultiplyTransposed({memory_.data() + f.memory, f.tensor.rows, f.tensor.columns}, p, rank_,
                       own_q_.data() + f.q);
  }
  q_ = own_q_;
  DT_ASSIGN_OR_RETURN(work_, Sum(q_, "Q of "));
  return absl::OkStatus();
}

void PowerSgdReduction::Finish() {
  for (const Factored& f : factored_) {
    const auto& [start, rows, columns] = f.tensor;
    const float* const p = first_.data() + f.p;
    Expand(p, q_.data() + f.q, rank_, rows, columns, data_.data() + start);
    SubtractExpanded(p, own_q_.data() + f.q, rank_, rows, columns, memory_.data() + f.memory);
  }
  for (const Whole& whole : wholes_) {
    std::copy_n(first_.data() + whole.place, whole.count, data_.data() + whole.start);
  }
  sum_of_squares_ = SquareSum(data_.data(), data_.size());
  if (!std::isfinite(sum_of_squares_)) {
    Forget();  // The step is skipped and must leave nothing behind; all ranks see the same sum.
    return;
  }
  if (!error_feedback_) {
    std::fill(memory_.begin(), memory_.end(), 0.0F);
  }
  for (const Factored& f : factored_) {
    for (size_t k = 0; k < static_cast<size_t>(rank_); ++k) {
      float* const column = q_.data() + f.q + k * f.tensor.columns;
      if (SquareSum(column, f.tensor.columns) == 0) {
        RenewColumn(column, f.tensor.columns);
      }
    }
  }
}

}  // namespace dtrain::comm
