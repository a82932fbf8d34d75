#include "bench/mfu/report.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace dtrain::bench {
namespace {

constexpr size_t kPointsMax = 12;  // The roofline's; the JSON has all points.

std::string Title(const MfuFacts& facts) {
  return absl::StrFormat("%s, %s, ZeRO %d, %d rank%s", facts.model, facts.dtype, facts.zero_stage,
                         facts.ranks, facts.ranks == 1 ? "" : "s");
}

void Row(std::string& out, const char* name, const std::string& value) {
  absl::StrAppendFormat(&out, "%-28s%s\n", name, value);
}

std::string StepsInWords(const MfuFacts& facts) {
  const size_t steps = facts.step_seconds.size();
  if (facts.on_gpu) {
    return absl::StrFormat("mean of %d steps of %.3f s, by one clock", steps, StepSeconds(facts));
  }
  const auto [fastest, slowest] =
      std::minmax_element(facts.step_seconds.begin(), facts.step_seconds.end());
  return absl::StrFormat("median of %d steps of %.3f s, %.3f to %.3f", steps, StepSeconds(facts),
                         *fastest, *slowest);
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

// The rate may have been slowed down by other programs.
std::string PercentUnless(bool disturbed, double share) {
  return disturbed ? "unknown: other programs slowed the products down" : Percent(share);
}

Json NumberUnless(bool disturbed, double share) { return disturbed ? Json() : Json(share); }

std::string Tera(double flops) {
  return flops >= 1e12 ? absl::StrFormat("%.1f TFLOP/s", flops * 1e-12)
                       : absl::StrFormat("%.1f GFLOP/s", flops * 1e-9);
}

Json BreakdownJson(const Breakdown& breakdown) {
  Json json = Json::object();
  for (int i = 0; i < kWorkKinds; ++i) {
    const auto work = static_cast<Work>(i);
    json[WorkName(work)] = {{"s", breakdown.seconds[i]}, {"share", breakdown.share(work)}};
  }
  return json;
}

// The longest of them, with names that fit a line.
Json TotalsJson(const std::vector<KernelTotal>& totals) {
  constexpr size_t kTotalsMax = 48;
  constexpr size_t kNameMax = 160;
  Json rows = Json::array();
  for (size_t i = 0; i < std::min(totals.size(), kTotalsMax); ++i) {
    rows.push_back({{"name", totals[i].name.substr(0, kNameMax)},
                    {"calls", totals[i].calls},
                    {"s", totals[i].seconds}});
  }
  return rows;
}

Json GroupsJson(const std::vector<OperationGroup>& groups) {
  Json json = Json::array();
  for (const OperationGroup& group : groups) {
    json.push_back({{"operation", group.each.label},
                    {"kind", WorkName(group.work)},
                    {"calls", group.calls},
                    {"s", group.seconds},
                    {"flop_per_call", group.each.flop},
                    {"bytes_per_call", group.each.bytes},
                    {"flops_per_s", group.flops_per_s()}});
  }
  return json;
}

}  // namespace

std::string MfuTable(const MfuFacts& facts) {
  const double strict = StrictFlopsPerToken(facts.shape, facts.sequence);
  std::string out = absl::StrFormat(
      "%s: %.1fM parameters (%.1fM in products); micro-batch %d x %g tokens, %d micro-batch%s a "
      "step; attention %s; recompute %s; AdamW states %s; clip %g; dropout off\n%s, %d thread%s a "
      "rank, load "
      "average %.1f; %s\n",
      Title(facts), facts.shape.parameters * 1e-6, StrictParameters(facts.shape) * 1e-6,
      facts.micro_batch, facts.sequence.length, facts.accumulation,
      facts.accumulation == 1 ? "" : "es", facts.attention, facts.recompute, facts.optimizer_states,
      facts.clip, facts.device, facts.threads, facts.threads == 1 ? "" : "s", facts.load_average,
      facts.versions);
  Row(out, "tokens/s", absl::StrFormat("%.0f (%s)", TokensPerSecond(facts), StepsInWords(facts)));
  Row(out, "FLOP a token",
      absl::StrFormat("%.4g strict, %.4g PaLM", strict,
                      PalmFlopsPerToken(facts.shape, facts.sequence)));
  Row(out, "achieved a rank", Tera(strict * TokensPerSecond(facts) / facts.ranks));
  Row(out, "peak a rank",
      absl::StrFormat("%s: %s", Tera(facts.peak_flops_per_s), facts.peak_source));
  const bool disturbed = PeakIsDisturbed(facts);
  Row(out, facts.on_gpu ? "MFU (strict)" : "MFU (strict) of GEMM rate",
      PercentUnless(disturbed, StrictMfu(facts)));
  if (const double sol = SpeedOfLightFraction(facts); sol > 0) {
    Row(out, "each type at its peak (SOL)", Percent(sol));
  }
  Row(out, "PaLM-style MFU", PercentUnless(disturbed, PalmMfu(facts)));
  Row(out, "HFU", PercentUnless(disturbed, Hfu(facts)));
  Row(out, "GEMM rate of this run",
      absl::StrFormat("%s (%d x %d, %s); strict fraction of it %s", Tera(facts.gemm_flops_per_s),
                      facts.gemm_size, facts.gemm_size, facts.dtype,
                      PercentUnless(GemmRateIsDisturbed(facts), GemmFraction(facts))));
  Row(out, "copy rate of this run", absl::StrFormat("%.1f GB/s", facts.copy_bytes_per_s * 1e-9));
  Row(out, "memory peak a rank", absl::StrFormat("%.1f MB", facts.memory_peak_bytes * 1e-6));
  absl::StrAppendFormat(&out,
                        "one step under the profiler (%d of %d micro-batches, %.3f s, rank 0):\n",
                        facts.profiled_micro_batches, facts.accumulation, facts.profiled_step_s);
  for (int i = 0; i < kWorkKinds; ++i) {
    const auto work = static_cast<Work>(i);
    absl::StrAppendFormat(&out, "  %-24s%7.1f %%  %.4f s\n", WorkName(work),
                          100 * facts.breakdown.share(work), facts.breakdown.seconds[i]);
  }
  return out;
}

Json MfuJson(const MfuFacts& facts) {
  const bool disturbed = PeakIsDisturbed(facts);
  return {{"bench", "mfu"},
          {"schema", 1},
          {"model", facts.model},
          {"parameters", facts.shape.parameters},
          {"strict_parameters", StrictParameters(facts.shape)},
          {"dtype", facts.dtype},
          {"zero_stage", facts.zero_stage},
          {"attention", facts.attention},
          {"recompute", facts.recompute},
          {"optimizer_states", facts.optimizer_states},
          {"gradient_clipping", facts.clip},
          {"micro_batch", facts.micro_batch},
          {"sequence", facts.sequence.length},
          {"accumulation", facts.accumulation},
          {"device", facts.device},
          {"on_gpu", facts.on_gpu},
          {"ranks", facts.ranks},
          {"threads_per_rank", facts.threads},
          {"load_average", facts.load_average},
          {"versions", facts.versions},
          {"warm_up_steps", facts.warm_up_steps},
          {"step_seconds", facts.step_seconds},
          {"measured_s", facts.measured_s},
          {"tokens_per_s", TokensPerSecond(facts)},
          {"flop_per_token_strict", StrictFlopsPerToken(facts.shape, facts.sequence)},
          {"flop_per_token_palm", PalmFlopsPerToken(facts.shape, facts.sequence)},
          {"peak_flops_per_s", facts.peak_flops_per_s},
          {"peak_source", facts.peak_source},
          {"mfu_strict", NumberUnless(disturbed, StrictMfu(facts))},
          {"mfu_palm", NumberUnless(disturbed, PalmMfu(facts))},
          {"hfu", NumberUnless(disturbed, Hfu(facts))},
          {"speed_of_light_fraction", SpeedOfLightFraction(facts)},
          {"gemm_flops_per_s", facts.gemm_flops_per_s},
          {"gemm_size", facts.gemm_size},
          {"gemm_fraction", NumberUnless(GemmRateIsDisturbed(facts), GemmFraction(facts))},
          {"copy_bytes_per_s", facts.copy_bytes_per_s},
          {"memory_peak_bytes", facts.memory_peak_bytes},
          {"profiled_step_s", facts.profiled_step_s},
          {"profiled_micro_batches", facts.profiled_micro_batches},
          {"loss", facts.loss},
          {"breakdown", BreakdownJson(facts.breakdown)},
          {"operations", GroupsJson(facts.groups)},
          {"kernels", TotalsJson(facts.kernels)},
          {"idle_after", TotalsJson(facts.idle_after)}};
}

Roofline MfuRoofline(const MfuFacts& facts) {
  Roofline roofline;
  roofline.title = absl::StrFormat("%s: strict MFU %s", Title(facts),
                                   PercentUnless(PeakIsDisturbed(facts), StrictMfu(facts)));
  roofline.subtitle =
      absl::StrFormat("%s; one rank, products and attention of a profiled step", facts.device);
  roofline.bytes_per_s = facts.copy_bytes_per_s;
  roofline.roofs.push_back(
      {absl::StrFormat("GEMM %d x %d", facts.gemm_size, facts.gemm_size), facts.gemm_flops_per_s});
  if (facts.peak_flops_per_s > 1.001 * facts.gemm_flops_per_s) {
    roofline.roofs.push_back({"peak", facts.peak_flops_per_s});
  }
  for (size_t i = 0; i < std::min(facts.groups.size(), kPointsMax); ++i) {
    const OperationGroup& group = facts.groups[i];
    roofline.points.push_back(
        {group.each.label, group.work, group.flop_per_byte(), group.flops_per_s(),
         facts.profiled_step_s > 0 ? group.seconds / facts.profiled_step_s : 0});
  }
  return roofline;
}

}  // namespace dtrain::bench
