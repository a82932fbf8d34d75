#include "runtime/gradients/compression/factors_on_device.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ATen/Functions.h"
#include "base/status.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {
namespace {

// A column of which no more than this share of its length is left lies in the span of the others,
// but for rounding.
constexpr double kHardlyAny = 1e-5;

at::Tensor LengthOf(const at::Tensor& columns) {
  return at::linalg_vector_norm(columns, 2, {1}, /*keepdim=*/true, at::kDouble);
}

// The rows of each of p [matrices, rank, rows] orthonormal, by Gram-Schmidt done twice; one that
// hardly leaves the span of those before it becomes zero. Not finite stays so.
void Orthogonalize(const at::Tensor& p) {
  for (int64_t k = 0; k < p.size(1); ++k) {
    at::Tensor column = p.select(1, k);
    const at::Tensor before = LengthOf(column);
    const at::Tensor others = p.narrow(1, 0, k);
    for (int pass = 0; k > 0 && pass < 2; ++pass) {
      const at::Tensor along = at::bmm(others, column.unsqueeze(2));
      column.sub_(at::bmm(others.transpose(1, 2), along).squeeze(2));
    }
    const at::Tensor after = LengthOf(column);
    const at::Tensor scale = after.reciprocal().masked_fill_(after.le(before.mul(kHardlyAny)), 0);
    column.mul_(scale.to(at::kFloat));
  }
}

}  // namespace

FactorsOnDevice::FactorsOnDevice(const comm::BucketShape& shape,
                                 const comm::CompressionOptions& options)
    : rank_(options.rank),
      error_feedback_(options.error_feedback),
      plan_(comm::PlanLowRank(shape, options.rank)) {}

absl::StatusOr<std::unique_ptr<FactorsOnDevice>> FactorsOnDevice::Create(
    const Device& device, const comm::BucketShape& shape, const comm::CompressionOptions& options) {
  auto made = std::unique_ptr<FactorsOnDevice>(new FactorsOnDevice(shape, options));
  made->MakeBatches();
  DT_RETURN_IF_ERROR(made->MakeMemory(device, options.seed));
  return made;
}

void FactorsOnDevice::MakeBatches() {
  for (const comm::BucketTensor& tensor : plan_.factored) {
    const auto rows = static_cast<int64_t>(tensor.rows);
    const auto columns = static_cast<int64_t>(tensor.columns);
    auto batch = std::find_if(batches_.begin(), batches_.end(), [&](const Batch& other) {
      return other.rows == rows && other.columns == columns;
    });
    if (batch == batches_.end()) {
      batches_.push_back({.rows = rows, .columns = columns});
      batch = std::prev(batches_.end());
    }
    batch->starts.push_back(static_cast<int64_t>(tensor.start));
  }
}

absl::Status FactorsOnDevice::MakeMemory(const Device& device, uint64_t seed) {
  int64_t p = 0;
  int64_t q = 0;
  int64_t residuals = 0;
  for (const Batch& batch : batches_) {
    const auto matrices = static_cast<int64_t>(batch.starts.size());
    p += matrices * rank_ * batch.rows;
    q += matrices * rank_ * batch.columns;
    residuals += matrices * batch.rows * batch.columns;
  }
  int64_t whole = 0;
  for (const comm::LowRankPlan::Whole& part : plan_.wholes) {
    whole += static_cast<int64_t>(part.count);
  }
  const int64_t elements = residuals + p + whole + 3 * q;
  DT_ASSIGN_OR_RETURN(memory_,
                      DeviceMemory::Create(device, static_cast<size_t>(elements) * sizeof(float),
                                           "PowerSGD's factors and what they leave out"));
  const at::Tensor all = TensorOver(memory_, elements, at::kFloat, device.tensors());
  first_ = all.narrow(0, residuals, p + whole);
  wholes_ = first_.narrow(0, p, whole);
  q_ = all.narrow(0, residuals + p + whole, q);
  own_q_ = all.narrow(0, residuals + p + whole + q, q);
  fresh_ = all.narrow(0, residuals + p + whole + 2 * q, q);
  PlaceBatches(all.narrow(0, 0, residuals));
  fresh_.copy_(FirstBases(seed));
  q_.copy_(fresh_);
  return absl::OkStatus();
}

void FactorsOnDevice::PlaceBatches(const at::Tensor& residuals) {
  int64_t p = 0;
  int64_t q = 0;
  int64_t matrix = 0;
  const auto place = [](const at::Tensor& in, int64_t& at, at::IntArrayRef shape) {
    const int64_t elements = shape[0] * shape[1] * shape[2];
    return in.narrow(0, std::exchange(at, at + elements), elements).view(shape);
  };
  for (Batch& batch : batches_) {
    const auto matrices = static_cast<int64_t>(batch.starts.size());
    batch.matrices = place(residuals, matrix, {matrices, batch.rows, batch.columns});
    batch.p = place(first_, p, {matrices, rank_, batch.rows});
    for (const auto& [in, of] : {std::pair(&q_, &batch.q), std::pair(&own_q_, &batch.own_q),
                                 std::pair(&fresh_, &batch.fresh)}) {
      int64_t at = q;
      *of = place(*in, at, {matrices, rank_, batch.columns});
    }
    q += batch.q.numel();
  }
}

// Those that the host begins with: numbered by the bucket's tensors, in order.
at::Tensor FactorsOnDevice::FirstBases(uint64_t seed) const {
  at::Tensor bases = at::empty({fresh_.numel()}, at::kFloat);
  std::vector<int64_t> taken(batches_.size(), 0);
  uint64_t number = 0;
  for (const comm::BucketTensor& tensor : plan_.factored) {
    int64_t at = 0;
    for (size_t i = 0; i < batches_.size(); ++i) {
      const Batch& batch = batches_[i];
      const int64_t elements = rank_ * batch.columns;
      if (batch.rows == static_cast<int64_t>(tensor.rows) &&
          batch.columns == static_cast<int64_t>(tensor.columns)) {
        at += taken[i]++ * elements;
        break;
      }
      at += static_cast<int64_t>(batch.starts.size()) * elements;
    }
    for (int64_t k = 0; k < rank_; ++k) {
      comm::FillDirection(
          seed, ++number,
          bases.mutable_data_ptr<float>() + at + k * static_cast<int64_t>(tensor.columns),
          tensor.columns);
    }
  }
  return bases;
}

void FactorsOnDevice::MakeFirst(const at::Tensor& values) {
  for (Batch& batch : batches_) {
    const int64_t each = batch.rows * batch.columns;
    for (size_t i = 0; i < batch.starts.size(); ++i) {
      // From here on this is the matrix: this step's gradient and what was left out before.
      batch.matrices.select(0, static_cast<int64_t>(i))
          .add_(values.narrow(0, batch.starts[i], each).view({batch.rows, batch.columns}));
    }
    at::bmm_out(batch.p, batch.q, batch.matrices.transpose(1, 2));
  }
  int64_t at = 0;
  for (const comm::LowRankPlan::Whole& whole : plan_.wholes) {
    const auto count = static_cast<int64_t>(whole.count);
    wholes_.narrow(0, at, count).copy_(values.narrow(0, static_cast<int64_t>(whole.start), count));
    at += count;
  }
}

void FactorsOnDevice::MakeSecond() {
  for (Batch& batch : batches_) {
    Orthogonalize(batch.p);
    at::bmm_out(batch.own_q, batch.p, batch.matrices);
  }
  q_.copy_(own_q_);
}

void FactorsOnDevice::Expand(const at::Tensor& values) {
  for (Batch& batch : batches_) {
    const at::Tensor p = batch.p.transpose(1, 2);
    for (size_t i = 0; i < batch.starts.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      at::Tensor to = values.narrow(0, batch.starts[i], batch.rows * batch.columns)
                          .view({batch.rows, batch.columns});
      at::mm_out(to, p.select(0, index), batch.q.select(0, index));
    }
    batch.matrices.baddbmm_(p, batch.own_q, 1, -1);
  }
  int64_t at = 0;
  for (const comm::LowRankPlan::Whole& whole : plan_.wholes) {
    const auto count = static_cast<int64_t>(whole.count);
    values.narrow(0, static_cast<int64_t>(whole.start), count).copy_(wholes_.narrow(0, at, count));
    at += count;
  }
}

void FactorsOnDevice::Forget(const at::Tensor& broken) {
  for (Batch& batch : batches_) {
    if (error_feedback_) {
      batch.matrices.masked_fill_(broken, 0);
    } else {
      batch.matrices.zero_();
    }
    const at::Tensor empty = batch.q.square().sum(2, /*keepdim=*/true).eq(0);
    batch.q.copy_(at::where(empty.logical_or(broken), batch.fresh, batch.q));
  }
}

}  // namespace dtrain
