// The buckets of ZeRO stage 1 that are reduced in one call: those that one gradient fills. A large
// weight lies in several buckets, since a ShardPlan cuts tensors. At stages 2 and 3 a rank has
// memory for two buckets at a time, so there they go one by one.
//
// A bucket goes with the one launched before it if every tensor in it has a part in a bucket
// launched earlier: once that one is launched this one is full as well, so it never waits, and the
// launch queue gives both at once. The grouping follows from the plan and the order alone, which
// are equal on all ranks, and holds for a backward that is captured too: all forms of a step reduce
// the same buckets together, and with them the bits that NCCL gives (nccl_together.cc) are the
// same.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/layout/shard_plan.h"

namespace dtrain::plan {

// The most that go together: the first of them is waited for until all are reduced.
inline constexpr int kCoalescedBucketsMax = 8;

// By bucket: 1 for the last one of those that go together. `spans` by entry; `order`: every bucket
// once, as they are launched.
std::vector<uint8_t> EndsOfCoalesced(const std::vector<BucketSpan>& spans,
                                     const std::vector<int>& order);

}  // namespace dtrain::plan
