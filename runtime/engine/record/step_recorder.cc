#include "runtime/engine/record/step_recorder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "runtime/engine/record/memory_report.h"
#include "runtime/job/job_state.h"
#include "runtime/memory/device_peak.h"
#include "runtime/memory/memory_in_use.h"
#include "runtime/model/dtypes.h"
#include "runtime/ops/recompute_times.h"

namespace dtrain {

StepRecorder::StepRecorder(Job& job, const EngineState& state, const GradientSync& gradients,
                           ActivationStore* activations)
    : job_(job),
      state_(state),
      gradients_(gradients),
      activations_(activations),
      trace_(job.config().metrics_trace(),
             {.path_prefix = absl::StrCat(job.run_dir(), "/trace/rank-", job.rank()),
              .rank = job.rank(),
              .gpu = job.device().is_cuda()},
             [this] { return MemoryNow(BytesInUse(*job_.state().device)); }),
      gemms_(MakeGemmProbe()),
      peak_flops_(DatasheetPeak(*job.state().device, job.config())) {}

// Rank 0 alone shows a fraction, and repeats while the others train, as they do beside its steps. A
// GPU, which nothing else uses, is measured once: each time would wait for it.
GemmProbe StepRecorder::MakeGemmProbe() const {
  const auto type = [this] { return FloatTypeOf(state_.flat->dtype()); };
  const Device& device = *job_.state().device;
  GemmProbe::Measures measures;
  measures.first = [&device, type] { return MeasureGemmRate(device, type()); };
  if (job_.rank() == 0 && device.is_host()) {
    measures.repeat = [type](int64_t size) { return RepeatGemmRate(type(), size); };
  }
  return GemmProbe(std::move(measures));
}

MemoryReport StepRecorder::MemoryNow(int64_t activation_bytes) const {
  MemoryReport memory = ReportMemory(state_, gradients_, activation_bytes);
  memory.far_activations = activations_ == nullptr ? 0 : activations_->far_bytes();
  return memory;
}

void StepRecorder::BeginStep() {
  TakeRecomputeSeconds();  // Other engines' time.
  trace_.Begin(state_.progress.step + 1);
}

void StepRecorder::NoteFirstForward() {
  if (!first_forward_noted_) {
    first_forward_noted_ = true;
    job_.metrics().LogEvent(EventKind::kEvent, {{"name", "first_forward"}});
  }
}

void StepRecorder::NoteActivations(StepInProgress& step, int64_t left) const {
  if (activations_ != nullptr && activations_->in_counted_memory()) {
    left -= activations_->far_bytes();
  }
  step.activations = std::max(step.activations, left);
}

void StepRecorder::EndStep(StepInProgress& step) {
  StepReport& report = step.report;
  report.model_flops = state_.options.flops_per_sample * static_cast<double>(step.samples);
  report.gemm_flops_per_s = gemms_.rate();
  report.peak_flops_per_s = peak_flops_;
  report.seconds = static_cast<double>(Clock::Real().MonotonicNanos() - step.start_nanos) * 1e-9;
  report.memory = MemoryNow(step.activations);
  if (activations_ != nullptr) {
    report.memory.far_activations = activations_->TakePeakFarBytes();
  }
  const RecomputeSeconds again = TakeRecomputeSeconds();
  report.recompute_s = again.recompute;
  report.activation_wait_s = again.wait;
  trace_.End(state_.progress.step);
}

}  // namespace dtrain
