// A rank's memory over a step, by category, as counters of a Chrome trace: looked at after
// LibTorch's operations, at most every 100 us.
//
// One at a time in a process; while it lives, operations call its sampler from their threads, one
// after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "dtrain/metrics.h"

namespace dtrain {

class MemoryTimeline {
 public:
  // Reports the memory in use now. Its `activations` are all that the process has on its heap; the
  // timeline shows the growth since its start.
  using Sampler = std::function<MemoryReport()>;

  explicit MemoryTimeline(Sampler sampler);
  MemoryTimeline(const MemoryTimeline&) = delete;
  MemoryTimeline& operator=(const MemoryTimeline&) = delete;
  ~MemoryTimeline();

  // Samples a last time and writes the counters ("memory", bytes). `base_nanos`: what timestamps
  // count from, of the trace that this one is shown with. Unavailable names the file.
  absl::Status Write(const std::string& path, int64_t base_nanos, int rank);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace dtrain
