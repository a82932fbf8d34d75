// Small things that the forms of ZeRO share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/buffer.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// [elements] fp32 for a collective.
comm::Buffer Floats(float* data, int64_t elements);

// By bucket, its name in reports and timelines: "`what` 3 (layers.1.mlp.up.weight)", the first
// parameter in it.
std::vector<std::string> BucketNames(const char* what, const FlatParameters& flat,
                                     const plan::ShardPlan& shards);

// Sum of squares of data [elements], in fp64; `offset` is its place in the layout, which decides
// the order of the sum (kernels/optimizer/grad_norm.h).
double SquareSum(const float* data, int64_t offset, int64_t elements);

}  // namespace dtrain
