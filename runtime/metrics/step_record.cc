#include "runtime/metrics/step_record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dtrain {
namespace {

// The name of the rate says what is counted. The two common names stand here whole: a test holds
// the table of metrics to the names in the code.
std::string RateName(const std::string& unit) {
  if (unit == "tokens") {
    return "perf/tokens_per_s";
  }
  return unit.empty() ? "perf/samples_per_s" : absl::StrCat("perf/", unit, "_per_s");
}

}  // namespace

StepReport StepReport::Settled() const {
  if (late == nullptr) {
    return *this;
  }
  const StepNumbers& numbers = late->Wait();
  StepReport settled = *this;
  settled.late = nullptr;
  settled.loss = numbers.loss;
  settled.grad_norm = numbers.grad_norm;
  settled.skipped = numbers.skipped;
  settled.seconds = numbers.seconds;
  settled.forward_s = numbers.forward_s;
  settled.backward_s = numbers.backward_s;
  settled.exposed_comm_s = numbers.exposed_comm_s;
  settled.update_s = numbers.update_s;
  return settled;
}

std::vector<std::pair<std::string, double>> StepMetrics(const StepReport& report,
                                                        const StepRecordContext& context,
                                                        bool everything) {
  const double seconds = std::max(report.seconds, 1e-9);
  std::vector<std::pair<std::string, double>> metrics;
  if (everything) {
    metrics.emplace_back("train/loss", report.loss);
    metrics.emplace_back("train/grad_norm", report.grad_norm);
    metrics.emplace_back("train/lr", report.learning_rate);
    if (report.loss_scale != 1) {
      metrics.emplace_back("train/loss_scale", report.loss_scale);
    }
    if (report.skipped) {
      metrics.emplace_back("train/skipped", 1);
    }
    metrics.emplace_back(RateName(report.unit), static_cast<double>(report.tokens) / seconds);
    // No step multiplies faster than products alone: above 1 these were slowed down by something
    // else, or the program states more FLOPs than it computes.
    const double model_rate = report.model_flops / seconds;
    if (model_rate > 0 && model_rate <= report.gemm_flops_per_s) {
      metrics.emplace_back("perf/gemm_fraction", model_rate / report.gemm_flops_per_s);
    }
    if (report.peak_flops_per_s > 0 && report.model_flops > 0) {
      metrics.emplace_back("perf/mfu", report.model_flops / seconds / report.peak_flops_per_s);
    }
    if (context.total_steps > 0) {
      metrics.emplace_back("time/eta_s", static_cast<double>(context.total_steps - report.step) *
                                             context.mean_step_s);
    }
  }
  metrics.emplace_back("comm/exposed_ratio", report.exposed_comm_s / seconds);
  metrics.emplace_back("time/step_s", report.seconds);
  metrics.emplace_back("time/data_s", report.data_s);
  metrics.emplace_back("time/forward_s", report.forward_s);
  metrics.emplace_back("time/backward_s", report.backward_s);
  metrics.emplace_back("time/exposed_comm_s", report.exposed_comm_s);
  metrics.emplace_back("time/update_s", report.update_s);
  if (report.recompute_s > 0) {
    metrics.emplace_back("time/recompute_s", report.recompute_s);
    metrics.emplace_back("time/activation_wait_s", report.activation_wait_s);
  }
  const MemoryReport& memory = report.memory;
  if (memory.far_activations > 0) {
    metrics.emplace_back("memory/far_activations_bytes",
                         static_cast<double>(memory.far_activations));
  }
  for (const auto& [name, bytes] : {std::pair("memory/weights_bytes", memory.weights),
                                    std::pair("memory/live_weights_bytes", memory.live_weights),
                                    std::pair("memory/gradients_bytes", memory.gradients),
                                    std::pair("memory/optimizer_bytes", memory.optimizer),
                                    std::pair("memory/activations_bytes", memory.activations),
                                    std::pair("memory/resident_bytes", memory.resident)}) {
    metrics.emplace_back(name, static_cast<double>(bytes));
  }
  return metrics;
}

}  // namespace dtrain
