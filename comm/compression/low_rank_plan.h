// The tensors of a bucket that low-rank compression treats as matrices, and the start of its bases.
// Both are the same on the host and on a GPU. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/compression/bucket_reduction.h"

namespace dtrain::comm {

struct LowRankPlan {
  // A range of the bucket that travels as it is.
  struct Whole {
    size_t start = 0;
    size_t count = 0;
  };
  // Tensors whose factors have at most half of the elements; in order.
  std::vector<BucketTensor> factored;
  std::vector<Whole> wholes;  // Everything else, including elements between tensors; in order.
};

LowRankPlan PlanLowRank(const BucketShape& shape, int rank);

// Fills column [count] with values in [-1, 1): direction `number`, from 1, of the sequence that
// `seed` gives.
void FillDirection(uint64_t seed, uint64_t number, float* column, size_t count);

}  // namespace dtrain::comm
