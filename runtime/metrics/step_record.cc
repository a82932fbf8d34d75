#include "runtime/metrics/step_record.h"

#include <algorithm>

namespace dtrain {

Json StepMetrics(const StepReport& report, const StepRecordContext& context, bool everything) {
  const double seconds = std::max(report.seconds, 1e-9);
  Json metrics = Json::object();
  if (everything) {
    metrics["train/loss"] = report.loss;
    metrics["train/grad_norm"] = report.grad_norm;
    metrics["train/lr"] = report.learning_rate;
    if (report.skipped) {
      metrics["train/skipped"] = 1;
    }
    metrics["perf/tokens_per_s"] = static_cast<double>(report.tokens) / seconds;
    if (report.gemm_flops_per_s > 0 && report.model_flops > 0) {
      metrics["perf/gemm_fraction"] = report.model_flops / seconds / report.gemm_flops_per_s;
    }
    if (context.total_steps > 0) {
      metrics["time/eta_s"] =
          static_cast<double>(context.total_steps - report.step) * context.mean_step_s;
    }
  }
  metrics["comm/exposed_ratio"] = report.exposed_comm_s / seconds;
  metrics["time/step_s"] = report.seconds;
  metrics["time/data_s"] = report.data_s;
  metrics["time/forward_s"] = report.forward_s;
  metrics["time/backward_s"] = report.backward_s;
  metrics["time/exposed_comm_s"] = report.exposed_comm_s;
  metrics["time/update_s"] = report.update_s;
  return metrics;
}

}  // namespace dtrain
