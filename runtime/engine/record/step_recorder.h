// Measures steps: the trace, memory, the GEMM rate, the time to the first forward. For
// the thread that trains.
#pragma once

#include <cstdint>

#include "dtrain/job.h"
#include "dtrain/metrics.h"
#include "runtime/engine/record/gemm_probe.h"
#include "runtime/engine/record/step_trace.h"
#include "runtime/engine/step_in_progress.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/offload/activation_store.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

class StepRecorder {
 public:
  // REQUIRES: all outlive this object. `activations`: null where what segments keep stays near.
  StepRecorder(Job& job, const EngineState& state, const GradientSync& gradients,
               ActivationStore* activations);

  void BeginStep();
  // Time to the first step is a number of its own: it is what a start costs.
  void NoteFirstForward();
  // `left`: bytes that a forward left, where a far tier may be counted too.
  void NoteActivations(StepInProgress& step, int64_t left) const;
  // Puts what was measured into the report of a step that has ended.
  void EndStep(StepInProgress& step);
  // Behind a step that took `seconds`; 0: not known yet.
  void MeasureGemms(double seconds) { gemms_.AfterStep(seconds); }

 private:
  MemoryReport MemoryNow(int64_t activation_bytes) const;
  GemmProbe MakeGemmProbe() const;

  Job& job_;
  const EngineState& state_;
  const GradientSync& gradients_;
  ActivationStore* const activations_;
  StepTrace trace_;
  GemmProbe gemms_;
  const double peak_flops_;  // FLOP/s of the datasheet; 0: none is known.
  bool first_forward_noted_ = false;
};

}  // namespace dtrain
