// What `dtrain bench comm` measures: each collective as a call on given memory, what its result
// must be, and how nccl-tests counts its bandwidth.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"

namespace dtrain::comm {

enum class BenchKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kSendReceive,
  kBarrier,
};
// "all_reduce"...
const char* BenchName(BenchKind kind);
const std::vector<BenchKind>& AllBenchKinds();

// Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): what the busiest link
// carries for each byte of the size.
double BusFactor(BenchKind kind, int ranks);

// fp32 memory of one rank, filled and checked for one call of `bytes` as nccl-tests counts them:
// the whole buffer.
class BenchCase {
 public:
  // `bytes` is rounded down to a whole number of elements for each rank, at least one.
  BenchCase(BenchKind kind, Group& group, size_t bytes);

  size_t bytes() const { return count_ * sizeof(float); }
  size_t count() const { return count_; }
  void Fill();
  absl::Status Run();
  // Elements that are not what they must be after Fill and Run.
  size_t Wrong() const;

 private:
  float Expected(size_t i) const;
  absl::Status RunSendReceive();

  const BenchKind kind_;
  Group& group_;
  size_t count_;  // Elements of the whole buffer.
  std::vector<float> input_;
  std::vector<float> output_;
};

}  // namespace dtrain::comm
