// How large the blocks of memory are in which gathered buckets lie on a GPU
// (shard/gather_blocks.h): buckets of units that a program has named may be of very different
// sizes. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/layout/shard_plan.h"

namespace dtrain::plan {

// Sizes of blocks, falling, so that a block lies ready for every bucket of any set that together
// has at most `live_max` elements: the i-th block is as large as the i-th largest bucket of such a
// set can be. Before them one more for the largest bucket, with which the host runs ahead, unless
// there is a block for each bucket.
std::vector<int64_t> BlockSizes(std::vector<int64_t> buckets, int64_t live_max);
// The same of a plan's buckets, in whole multiples of ShardOptions::bucket_multiple: what a GPU
// takes.
std::vector<int64_t> BlocksOf(const ShardPlan& shards, int64_t live_max);

}  // namespace dtrain::plan
