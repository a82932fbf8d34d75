#include "dtrain/flops.h"

namespace dtrain {

double MeanKeys(const FlopSequence& sequence) {
  if (sequence.sum_length > 0) {
    return sequence.sum_length_squared / (2 * sequence.sum_length);
  }
  return sequence.causal ? sequence.length / 2 : sequence.length;
}

double StrictParameters(const FlopModel& model) {
  const double embedding = model.tied ? 0 : model.vocabulary * model.hidden;
  return model.parameters - embedding - model.position_parameters;
}

double AttentionWidth(const FlopModel& model) {
  return model.layers * model.query_heads * model.head_dim;
}

double StrictFlopsPerToken(const FlopModel& model, const FlopSequence& sequence) {
  return 6 * StrictParameters(model) + 12 * AttentionWidth(model) * MeanKeys(sequence);
}

double PalmFlopsPerToken(const FlopModel& model, const FlopSequence& sequence) {
  return 6 * model.parameters + 12 * AttentionWidth(model) * sequence.length;
}

double RecomputedFlopsPerToken(double parameters, double width, const FlopSequence& sequence) {
  return 2 * parameters + 4 * width * MeanKeys(sequence);
}

double Utilization(double flops_per_token, double tokens_per_second, int devices,
                   double peak_flops_per_second) {
  return flops_per_token * tokens_per_second / (devices * peak_flops_per_second);
}

double SpeedOfLight(const FlopModel& model, const FlopSequence& sequence, double parameters_low,
                    double tokens_per_second, int devices, double peak_low, double peak_high) {
  const double low = 6 * parameters_low;
  const double high = StrictFlopsPerToken(model, sequence) - low;
  return (low / peak_low + high / peak_high) * tokens_per_second / devices;
}

}  // namespace dtrain
