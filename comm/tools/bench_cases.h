// What `dtrain bench comm` measures: each collective as a call on given memory, what its result
// must be, and how nccl-tests counts its bandwidth.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/tools/bench_memory.h"

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
bool Reduces(BenchKind kind);
// Whether input and output may be one memory.
bool WorksInPlace(BenchKind kind);

// Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): what the busiest link
// carries for each byte of the size.
double BusFactor(BenchKind kind, int ranks);

struct BenchSetting {
  BenchKind kind = BenchKind::kAllReduce;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  // all_reduce and broadcast of a Group are in place: out of place is a copy before them, which is
  // part of the time.
  bool in_place = false;
};

// One rank's part in calls of `bytes` as nccl-tests counts them: the whole buffer.
class BenchCase {
 public:
  // `bytes` is rounded down to a whole number of elements for each rank, at least one; `memory` has
  // as many in each of its buffers. REQUIRES: WorksInPlace(kind) where setting.in_place.
  BenchCase(const BenchSetting& setting, Group& group, BenchMemory& memory, size_t bytes);

  size_t bytes() const { return count_ * DTypeBytes(setting_.dtype); }
  size_t count() const { return count_; }
  // The input, and -1, which is nobody's value, everywhere else.
  absl::Status Fill();
  // Zeros in both: calls in place may follow each other without an overflow.
  absl::Status Clear();
  absl::Status Run();
  // Elements that are not what they must be after Fill and Run.
  absl::StatusOr<size_t> Wrong();

 private:
  // [count] elements of the result: of one rank, or the reduction over all (rank -1), as these have
  // them from `first` on.
  struct Segment {
    size_t count = 0;
    int rank = -1;
    size_t first = 0;
  };
  Buffer Of(char* base, size_t start, size_t count) const;
  absl::StatusOr<Work> Start();
  absl::Status RunSendReceive();
  std::vector<Segment> Expected() const;
  double ValueOf(const Segment& segment, size_t index) const;
  absl::StatusOr<size_t> WrongIn(const Segment& segment, const char* at);
  absl::Status StoreTiles(char* at, size_t count, const std::string& tile);

  const BenchSetting setting_;
  Group& group_;
  BenchMemory& memory_;
  const size_t count_;  // Elements of the whole buffer.
  const size_t part_;   // Of one rank.
};

}  // namespace dtrain::comm
