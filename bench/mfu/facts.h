// The measurements of a run of `dtrain bench mfu`, and the figures that follow. Pure; free of
// LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/mfu/breakdown.h"
#include "bench/mfu/operation_cost.h"
#include "dtrain/flops.h"

namespace dtrain::bench {

struct MfuFacts {
  // The work.
  std::string model;
  std::string dtype;  // "fp32", "bf16", "fp8".
  FlopModel shape;
  FlopSequence sequence;
  double recomputed_parameters = 0;  // Parameters of layers whose forward runs twice; 0: none.
  double recomputed_width = 0;
  std::string attention;  // The kernel that was asked for.
  std::string recompute = "none";
  int zero_stage = 0;
  int64_t micro_batch = 0;
  int64_t accumulation = 1;
  double clip = 0;
  std::string optimizer_states = "fp32";

  // The machine.
  std::string device;  // "cpu: AMD EPYC ...", "NVIDIA H100 80GB HBM3".
  bool on_gpu = false;
  int ranks = 1;
  int threads = 1;              // A rank's.
  double peak_flops_per_s = 0;  // Mean of a rank.
  std::string peak_source;      // A datasheet, --peak-tflops, or the GEMM rate of this run.
  bool peak_is_gemm_rate = false;
  // With FP8: the parameters in FP8 products, and the peak of the other products. 0: one type only.
  double low_parameters = 0;
  double high_peak_flops_per_s = 0;
  double gemm_flops_per_s = 0;  // Mean of a rank, in this run.
  int64_t gemm_size = 0;        // The product that gave it was of [size, size].
  double copy_bytes_per_s = 0;  // Rank 0's, read plus written.
  double load_average = 0;
  std::string versions;  // "dtrain 0.1.0 (commit), LibTorch 2.11.0".

  // The measurement.
  int warm_up_steps = 0;
  std::vector<double>
      step_seconds;       // Calls of rank 0; on a GPU one may return before its step ends.
  double measured_s = 0;  // All these steps together on a GPU, between two synchronisations.
  Breakdown breakdown;    // Rank 0's profiled step.
  std::vector<OperationGroup> groups;
  std::vector<KernelTotal> kernels;  // The profiled step's on a GPU, the longest first.
  std::vector<KernelTotal> idle_after;
  double profiled_step_s = 0;
  int64_t profiled_micro_batches = 1;
  double loss = 0;  // The last step's, nats a token; near log(vocabulary) on random tokens.
  double memory_peak_bytes = 0;  // The largest rank's.
};

// Tokens of one step over all ranks.
double TokensPerStep(const MfuFacts& facts);
double MedianStepSeconds(const MfuFacts& facts);
// The mean of all measured steps on a GPU, else their median.
double StepSeconds(const MfuFacts& facts);
double TokensPerSecond(const MfuFacts& facts);

// Whether something else slowed the products down that gave the GEMM rate: no step is faster than
// these alone. Nothing follows then from shares of that rate.
bool GemmRateIsDisturbed(const MfuFacts& facts);
// The same for the peak, if the peak is the GEMM rate.
bool PeakIsDisturbed(const MfuFacts& facts);

// docs/PERFORMANCE.md has the formulas; shares of ranks x peak.
double StrictMfu(const MfuFacts& facts);
double PalmMfu(const MfuFacts& facts);
double Hfu(const MfuFacts& facts);
// With FP8: the time that each type's products take at its own peak, over the measured one. Else 0.
double SpeedOfLightFraction(const MfuFacts& facts);
// Strict FLOP/s over the GEMM rate of this run.
double GemmFraction(const MfuFacts& facts);

}  // namespace dtrain::bench
