#include "runtime/gradients/shard_sums.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {

comm::Buffer Floats(float* data, int64_t elements) {
  return {data, static_cast<size_t>(elements) * sizeof(float), DType::kFloat32, {}};
}

std::vector<std::string> BucketNames(const char* what, const FlatParameters& flat,
                                     const plan::ShardPlan& shards) {
  std::vector<std::string> first(shards.buckets().size(), "padding");
  for (size_t entry = shards.spans().size(); entry-- > 0;) {
    const plan::BucketSpan span = shards.spans()[entry];
    std::fill(first.begin() + span.first, first.begin() + span.last,
              flat.layout().entries()[entry].name);
  }
  for (size_t bucket = 0; bucket < first.size(); ++bucket) {
    first[bucket] = absl::StrFormat("%s %d (%s)", what, bucket, first[bucket]);
  }
  return first;
}

double SquareSum(const float* data, int64_t offset, int64_t elements) {
  std::vector<double> scratch(static_cast<size_t>(kernels::NormBlocks(offset, elements)));
  return kernels::SquareSumCpu(data, offset, elements, scratch.data(), TorchParallelFor).sum;
}

}  // namespace dtrain
