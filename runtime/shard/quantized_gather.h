// The gathers of ZeRO stage 3 in int8 blocks (ZeRO++'s qwZ, Wang et al. 2023, arXiv 2306.10209): a
// half of the bytes that bf16 takes, a quarter of fp32's.
//
// This rank's share of a bucket is packed once for each version of the weights. Every rank unpacks
// its own share too, so all compute with the same weights, and how often or on how many ranks a
// bucket is gathered changes none of them. Not thread-safe; all ranks make the same calls in the
// same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "kernels/flat.h"

namespace dtrain {

class QuantizedGather {
 public:
  virtual ~QuantizedGather() = default;

  // The weights changed. REQUIRES: no gather is under way.
  virtual void Invalidate() = 0;
  // Whether this rank's part of `bucket` is packed since then: Start does not read it.
  virtual bool is_packed(int bucket) const = 0;
  // Collective. `share`: this rank's part of the bucket; null where it is packed. `whole`: where
  // its values go. REQUIRES: !full().
  virtual absl::StatusOr<comm::Work> Start(int bucket, const std::byte* share,
                                           kernels::MutableFlat whole, const std::string& name) = 0;
  // No more can be under way: Finish the oldest first.
  virtual bool full() const = 0;
  virtual int oldest() const = 0;
  // The gather of `bucket` is over: puts its values there. Does nothing for buckets not started
  // here.
  virtual void Finish(int bucket) = 0;
  virtual int64_t bytes() const = 0;
};

}  // namespace dtrain
