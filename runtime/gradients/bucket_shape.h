// A range of the flat buffers as comm::BucketReduction sees it. Pure.
#pragma once

#include <string>

#include "comm/compression/bucket_reduction.h"
#include "runtime/plan/layout/layout.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// The tensors in `range` as matrices, each by its first dimension; of one that the range cuts its
// whole rows, if it has any there: the rest travels as it is.
comm::BucketShape ShapeOf(std::string name, plan::FlatRange range, const plan::ParamLayout& layout);

}  // namespace dtrain
