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
#include "runtime/engine/memory_timeline.h"

namespace dtrain {

class StepTrace {
 public:
  // `path_prefix` + ".json", + "-memory.json": the files, made after the last chosen step.
  StepTrace(const TraceConfig& config, std::string path_prefix, int rank,
            MemoryTimeline::Sampler sampler)
      : config_(config),
        path_prefix_(std::move(path_prefix)),
        rank_(rank),
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
  const MemoryTimeline::Sampler sampler_;
  std::unique_ptr<MemoryTimeline> memory_;  // While recording.
  bool recording_ = false;
};

}  // namespace dtrain
