#include "runtime/shard/shard_sums.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/grad_norm.h"
#include "runtime/engine/torch_pool.h"

namespace dtrain {

comm::Buffer Floats(float* data, int64_t elements) {
  return {data, static_cast<size_t>(elements) * sizeof(float), DType::kFloat32, {}};
}

std::string BucketName(const char* what, const FlatParameters& flat, const plan::ShardPlan& shards,
                       int bucket) {
  const auto& spans = shards.spans();
  const auto first = std::find_if(spans.begin(), spans.end(), [&](const plan::BucketSpan& span) {
    return span.first <= bucket && bucket < span.last;
  });
  const size_t entry = static_cast<size_t>(first - spans.begin());
  return absl::StrFormat("%s %d (%s)", what, bucket,
                         first == spans.end() ? "padding" : flat.layout().entries()[entry].name);
}

double SquareSum(const float* data, int64_t offset, int64_t elements) {
  std::vector<double> scratch(static_cast<size_t>(kernels::NormBlocks(offset, elements)));
  return kernels::SquareSumCpu(data, offset, elements, scratch.data(), TorchParallelFor).sum;
}

}  // namespace dtrain
