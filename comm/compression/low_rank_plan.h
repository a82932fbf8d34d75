// What of a bucket low-rank compression takes as matrices, and where its bases begin: the same for
// every way to compute it, on the host or on a GPU. Pure.
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
  std::vector<BucketTensor> factored;  // Whose factors are at most half of the matrix; in order.
  std::vector<Whole> wholes;           // All else, what lies between tensors too; in order.
};

LowRankPlan PlanLowRank(const BucketShape& shape, int rank);

// column [count] = direction `number`, from 1, of those that `seed` gives: in [-1, 1).
void FillDirection(uint64_t seed, uint64_t number, float* column, size_t count);

}  // namespace dtrain::comm
