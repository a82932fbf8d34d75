// The cases that `dtrain bench comm` measures: each collective as a call on given memory, its
// expected result, and its bandwidth as nccl-tests counts it. Not thread-safe; the caller owns
// group and memory.
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

// Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): the bytes that the
// busiest link carries for each byte of the size.
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
  // Writes the input, and everywhere else -1, which no rank has as a value.
  absl::Status Fill();
  // Zeros in both: calls in place may follow each other without an overflow.
  absl::Status Clear();
  absl::Status Run();
  // The number of wrong elements after Fill and Run.
  absl::StatusOr<size_t> Wrong();

 private:
  // [count] elements of the expected result: elements from `first` on of one rank's input, or of
  // the reduction over all ranks (rank -1).
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
  const size_t part_;   // Elements of one rank's part.
};

}  // namespace dtrain::comm
