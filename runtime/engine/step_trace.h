// Chosen steps of a run as a Chrome trace: LibTorch's operations with their shapes and memory, and
// dtrain's phases, by LibTorch's own profiler (Kineto). For chrome://tracing, Perfetto, HTA.
//
// Driven by the thread that trains. Nothing is recorded outside the chosen steps.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/config.h"

namespace dtrain {

class StepTrace {
 public:
  // `path`: of the file, made after the last chosen step.
  StepTrace(const TraceConfig& config, std::string path)
      : config_(config), path_(std::move(path)) {}
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
  const std::string path_;
  bool recording_ = false;
};

}  // namespace dtrain
