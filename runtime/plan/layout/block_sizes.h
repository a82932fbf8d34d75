// Sizes of the blocks of memory in which gathered buckets lie on a GPU (shard/gather_blocks.h). The
// units that a program names may differ much in size, and so do their buckets. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/layout/shard_plan.h"

namespace dtrain::plan {

// Sizes of the blocks, in falling order. Any set of buckets with at most `live_max` elements finds
// a block for each of them: the i-th block is as large as the i-th largest bucket of such a set can
// be. Before them stands one more block for the largest bucket, with which the host runs ahead,
// unless there already is a block for each bucket.
std::vector<int64_t> BlockSizes(std::vector<int64_t> buckets, int64_t live_max);
// The same for the buckets of a plan, in whole multiples of ShardOptions::bucket_multiple, as a GPU
// needs them.
std::vector<int64_t> BlocksOf(const ShardPlan& shards, int64_t live_max);

}  // namespace dtrain::plan
