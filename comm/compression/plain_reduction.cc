#include "comm/compression/plain_reduction.h"

#include "base/status.h"

namespace dtrain::comm {

absl::Status PlainReduction::Start(absl::Span<float> data, int64_t /*step*/) {
  const Buffer buffer{data.data(), data.size() * sizeof(float), DType::kFloat32, {}};
  CollectiveOptions options;
  options.name = name_;
  options.wire = wire_;
  options.sum_of_squares = &sum_of_squares_;
  DT_ASSIGN_OR_RETURN(work_, group_.AllReduce(buffer, ReduceOp::kSum, options));
  return absl::OkStatus();
}

absl::StatusOr<bool> PlainReduction::Advance() {
  DT_RETURN_IF_ERROR(work_.Wait());
  return true;
}

}  // namespace dtrain::comm
