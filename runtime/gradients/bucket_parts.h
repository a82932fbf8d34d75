// Facts of a bucket and its parts that the forms of gradient reduction share: name, shape, buffer,
// sum of squares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/buffer.h"
#include "comm/compression/bucket_reduction.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/layout.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// The tensors in `range` as matrices, each by its first dimension; of one that the range cuts its
// whole rows, if it has any there: the rest travels as it is.
comm::BucketShape ShapeOf(std::string name, plan::FlatRange range, const plan::ParamLayout& layout);

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
