#include "runtime/gradients/bucket_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/model/torch_pool.h"

namespace dtrain {

comm::BucketShape ShapeOf(std::string name, plan::FlatRange range,
                          const plan::ParamLayout& layout) {
  comm::BucketShape shape;
  shape.name = std::move(name);
  shape.elements = static_cast<size_t>(range.elements());
  for (const plan::LayoutEntry& entry : layout.entries()) {
    const plan::FlatRange both =
        plan::Intersect(range, {entry.offset, entry.offset + entry.elements});
    if (both.elements() == 0) {
      continue;
    }
    const int64_t columns = entry.shape.size() > 1 ? entry.elements / entry.shape[0] : 1;
    const int64_t first = (both.begin - entry.offset + columns - 1) / columns;
    const int64_t last = (both.end - entry.offset) / columns;
    if (first < last) {
      shape.tensors.push_back(
          {.start = static_cast<size_t>(entry.offset + first * columns - range.begin),
           .rows = static_cast<size_t>(last - first),
           .columns = static_cast<size_t>(columns)});
    }
  }
  return shape;
}

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
