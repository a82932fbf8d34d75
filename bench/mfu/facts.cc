#include "bench/mfu/facts.h"

#include <algorithm>

namespace dtrain::bench {
namespace {

double ShareOf(const MfuFacts& facts, double flop_per_token, double rate) {
  return rate > 0 ? Utilization(flop_per_token, TokensPerSecond(facts), facts.ranks, rate) : 0;
}

}  // namespace

double TokensPerStep(const MfuFacts& facts) {
  return static_cast<double>(facts.ranks * facts.micro_batch * facts.accumulation) *
         facts.sequence.length;
}

double MedianStepSeconds(const MfuFacts& facts) {
  std::vector<double> sorted = facts.step_seconds;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.empty()           ? 0
         : sorted.size() % 2 == 1 ? sorted[half]
                                  : (sorted[half - 1] + sorted[half]) / 2;
}

double StepSeconds(const MfuFacts& facts) {
  const auto steps = static_cast<double>(facts.step_seconds.size());
  return !facts.on_gpu ? MedianStepSeconds(facts) : steps > 0 ? facts.measured_s / steps : 0;
}

double TokensPerSecond(const MfuFacts& facts) {
  const double seconds = StepSeconds(facts);
  return seconds > 0 ? TokensPerStep(facts) / seconds : 0;
}

bool GemmRateIsDisturbed(const MfuFacts& facts) { return GemmFraction(facts) > 1; }

bool PeakIsDisturbed(const MfuFacts& facts) {
  return facts.peak_is_gemm_rate && GemmRateIsDisturbed(facts);
}

double StrictMfu(const MfuFacts& facts) {
  return ShareOf(facts, StrictFlopsPerToken(facts.shape, facts.sequence), facts.peak_flops_per_s);
}

double PalmMfu(const MfuFacts& facts) {
  return ShareOf(facts, PalmFlopsPerToken(facts.shape, facts.sequence), facts.peak_flops_per_s);
}

double Hfu(const MfuFacts& facts) {
  const double again =
      RecomputedFlopsPerToken(facts.recomputed_parameters, facts.recomputed_width, facts.sequence);
  return ShareOf(facts, StrictFlopsPerToken(facts.shape, facts.sequence) + again,
                 facts.peak_flops_per_s);
}

double SpeedOfLightFraction(const MfuFacts& facts) {
  if (facts.high_peak_flops_per_s == 0 || facts.peak_flops_per_s == 0) {
    return 0;
  }
  return SpeedOfLight(facts.shape, facts.sequence, facts.low_parameters, TokensPerSecond(facts),
                      facts.ranks, facts.peak_flops_per_s, facts.high_peak_flops_per_s);
}

double GemmFraction(const MfuFacts& facts) {
  return ShareOf(facts, StrictFlopsPerToken(facts.shape, facts.sequence), facts.gemm_flops_per_s);
}

}  // namespace dtrain::bench
