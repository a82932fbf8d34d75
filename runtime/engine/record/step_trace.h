// Chosen steps of a run as a Chrome trace: LibTorch's operations with their shapes and memory, and
// dtrain's phases, by LibTorch's own profiler (Kineto); and beside it memory by category over the
// same time, as counters. For chrome://tracing, Perfetto, HTA.
//
// Driven by the thread that trains. Nothing is recorded outside the chosen steps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/config.h"
#include "runtime/memory/memory_timeline.h"

namespace dtrain {

class StepTrace {
 public:
  struct Place {
    std::string path_prefix;  // + ".json", + "-memory.json": made after the last chosen step.
    int rank = 0;
    bool gpu = false;  // With the GPU's kernels and copies.
  };
  StepTrace(const TraceConfig& config, const Place& place, MemoryTimeline::Sampler sampler)
      : config_(config),
        path_prefix_(place.path_prefix),
        rank_(place.rank),
        gpu_(place.gpu),
        sampler_(std::move(sampler)) {}
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Step `step` (from 1) begins: starts recording at the first chosen one.
  void Begin(int64_t step);
  // Step `step` is finished: after the last chosen one the file is written. A file that cannot be
  // written is a warning: the training goes on.
  void End(int64_t step);

 private:
  void Write();

  const TraceConfig config_;
  const std::string path_prefix_;
  const int rank_;
  const bool gpu_;
  const MemoryTimeline::Sampler sampler_;
  std::unique_ptr<MemoryTimeline> memory_;  // While recording.
  bool recording_ = false;
};

}  // namespace dtrain
