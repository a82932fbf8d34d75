// The options of `dtrain bench comm`, parsed and checked. Pure values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/system/available_memory.h"
#include "comm/tools/bench_cases.h"

namespace dtrain::comm {

struct BenchPlan {
  int ranks = 2;
  int nodes = 2;  // shm+tcp only: as how many nodes this host acts.
  std::vector<std::string> backends = {"shm", "tcp"};
  std::vector<std::string> collectives;
  size_t min_bytes = 8;
  size_t max_bytes = size_t{1} << 30;
  size_t factor = 4;
  int iterations = 0;  // 0: by size.
  bool registered = false;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::string json;           // "-": standard output.
  size_t left_out_above = 0;  // Sizes above were asked for and do not fit; 0: none.

  bool Wants(BenchKind kind) const;
  // From min_bytes by factor to max_bytes, which is the last in any case.
  std::vector<size_t> Sizes() const;
  // Bytes of each of a rank's buffers: enough for the largest size and for measuring the limit.
  size_t BufferBytes() const { return std::max(max_bytes, size_t{4} << 20); }
  int IterationsFor(size_t bytes) const;
  static int WarmUpsFor(size_t bytes);
};

// "sum", "avg", "max", "min".
const char* OpName(ReduceOp op);
// Whether the backend works on buffers of a GPU.
bool IsOfDevice(const std::string& backend);

// The exit code if the program is to end (help, a wrong option), else -1.
int ParseBenchOptions(int argc, char** argv, BenchPlan& plan);

// InvalidArgument for options that exclude each other.
absl::Status CheckPlan(const BenchPlan& plan);

// Lowers plan.max_bytes to what fits into `memory`; ResourceExhausted when nothing does.
absl::Status FitIntoMemory(const AvailableMemory& memory, BenchPlan& plan);

}  // namespace dtrain::comm
