#include "comm/compression/low_rank_plan.h"

#include "base/numeric/prng.h"

namespace dtrain::comm {
namespace {

// Whether the factors are at most half of the matrix.
bool WorthIt(const BucketTensor& tensor, size_t rank) {
  return 2 * rank * (tensor.rows + tensor.columns) <= tensor.elements();
}

}  // namespace

LowRankPlan PlanLowRank(const BucketShape& shape, int rank) {
  LowRankPlan plan;
  size_t covered = 0;  // End of the range handled so far. Elements between tensors are reduced too.
  for (const BucketTensor& tensor : shape.tensors) {
    if (!WorthIt(tensor, static_cast<size_t>(rank))) {
      continue;
    }
    if (covered < tensor.start) {
      plan.wholes.push_back({.start = covered, .count = tensor.start - covered});
    }
    covered = tensor.start + tensor.elements();
    plan.factored.push_back(tensor);
  }
  if (covered < shape.elements) {
    plan.wholes.push_back({.start = covered, .count = shape.elements - covered});
  }
  return plan;
}

void FillDirection(uint64_t seed, uint64_t number, float* column, size_t count) {
  SplitMix64 random(MixBits(seed + MixBits(number)));
  for (size_t i = 0; i < count; ++i) {
    column[i] = static_cast<float>(2.0 * random.Uniform() - 1.0);
  }
}

}  // namespace dtrain::comm
