// dtrain-bench-mfu: trains a model on random tokens and says how much of the machine's arithmetic
// that used. Alone one rank; under `dtrain launch` (or torchrun, srun, mpirun) as many as started.
#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/job_env.h"
#include "base/provenance.h"
#include "base/version.h"
#include "bench/mfu/check_options.h"
#include "bench/mfu/device.h"
#include "bench/mfu/facts.h"
#include "bench/mfu/machine_rates.h"
#include "bench/mfu/measure_steps.h"
#include "bench/mfu/memory_peak.h"
#include "bench/mfu/model.h"
#include "bench/mfu/options.h"
#include "bench/mfu/report.h"
#include "bench/mfu/step_profile.h"
#include "comm/group.h"
#include "dtrain/dtrain.h"
#include "runtime/job/job_state.h"
#include "runtime/plan/device_peaks.h"

namespace dtrain::bench {
namespace {

// Uniform tokens of this rank; every micro-batch is new.
class RandomTokens {
 public:
  RandomTokens(const MfuOptions& options, int64_t vocabulary, const at::Device& device, int rank)
      : shape_{options.micro_batch, options.sequence + 1},
        vocabulary_(vocabulary),
        device_(device),
        generator_(at::detail::createCPUGenerator(static_cast<uint64_t>(rank) + 1)) {}

  absl::StatusOr<Batch> Next() {
    at::Tensor all =
        at::randint(0, vocabulary_, shape_, generator_, at::TensorOptions().dtype(at::kLong));
    if (!device_.is_cpu()) {  // Pinned, so that no micro-batch waits for the device.
      all = all.pin_memory().to(device_, /*non_blocking=*/true);
    }
    Batch batch{all.slice(1, 0, shape_[1] - 1).contiguous(), all.slice(1, 1).contiguous()};
    batch.targets_counted = batch.targets.numel();
    return batch;
  }

 private:
  const std::vector<int64_t> shape_;
  const int64_t vocabulary_;
  const at::Device device_;
  at::Generator generator_;
};

// Reduces `value` over all ranks, in place.
absl::Status Reduce(Job& job, double& value, comm::ReduceOp op) {
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      job.group().AllReduce({&value, sizeof(value), DType::kFloat64, {}}, op,
                                            {.name = "bench facts", .caller_waits = true}));
  return work.Wait();
}

absl::Status FindPeak(const MfuOptions& options, const BenchDevice& device, MfuFacts& facts) {
  if (options.peak_tflops > 0) {
    facts.peak_flops_per_s = options.peak_tflops * 1e12;
    facts.peak_source = "--peak-tflops";
    return absl::OkStatus();
  }
  if (device.device.is_cpu()) {
    return absl::OkStatus();  // The measured rate, once it is known.
  }
  const plan::PeakType type = options.dtype == "fp8"    ? plan::PeakType::kFloat8
                              : options.dtype == "bf16" ? plan::PeakType::kBFloat16
                                                        : plan::PeakType::kFloat32;
  DT_ASSIGN_OR_RETURN(const plan::DevicePeak peak, plan::FindDevicePeak(device.name, type));
  facts.peak_flops_per_s = peak.tflops(type) * 1e12;
  facts.peak_source = peak.source;
  if (type == plan::PeakType::kFloat8) {
    facts.high_peak_flops_per_s = peak.tflops(plan::PeakType::kBFloat16) * 1e12;
  }
  return absl::OkStatus();
}

// The type of the factors of products in `dtype`.
at::ScalarType FactorType(const std::string& dtype) {
  return dtype == "fp32" ? at::kFloat : dtype == "fp8" ? at::kFloat8_e4m3fn : at::kBFloat16;
}

// The mean of the ranks' rates, all measured at once. A device that `model` has filled may have no
// room for operands: it has no rates then.
absl::StatusOr<MachineRates> RatesOfAll(Job& job, const at::Device& device, at::ScalarType type,
                                        bool model) {
  DT_RETURN_IF_ERROR(
      job.group().Barrier(Deadline::After(absl::Seconds(job.config().comm_timeout_seconds()))));
  MachineRates rates;
  try {
    rates = MeasureRates(device, type);
  } catch (const c10::OutOfMemoryError&) {
    if (!model) {
      throw;
    }
  }
  DT_RETURN_IF_ERROR(Reduce(job, rates.gemm_flops_per_s, comm::ReduceOp::kSum));
  rates.gemm_flops_per_s /= job.world_size();
  return rates;
}

void Describe(const MfuOptions& options, const Job& job, const BenchDevice& device,
              MfuFacts& facts) {
  facts.dtype = options.dtype;
  facts.sequence.length = static_cast<double>(options.sequence);
  facts.recompute = options.recompute;
  facts.attention = options.attention;
  facts.zero_stage = job.config().zero_stage();
  facts.micro_batch = options.micro_batch;
  facts.accumulation = options.accumulation;
  facts.clip = job.config().gradient_clipping();
  facts.optimizer_states = job.config().optimizer().bf16_states ? "bf16" : "fp32";
  facts.device = device.name;
  facts.on_gpu = !device.device.is_cpu();
  facts.ranks = job.world_size();
  facts.threads = at::get_num_threads();
  facts.warm_up_steps = options.warm_up;
  facts.profiled_micro_batches =
      options.short_micro_batches > 0 ? options.short_micro_batches : options.accumulation;
  facts.versions = absl::StrFormat("dtrain %s%s%s, LibTorch %s", kVersion,
                                   kCommit[0] == '\0' ? "" : " ", kCommit, TORCH_VERSION);
  double load = 0;
  facts.load_average = getloadavg(&load, 1) == 1 ? load : -1;
}

// A step of a few micro-batches.
absl::StatusOr<StepReport> ShortStep(int64_t micro_batches, Engine& engine, BenchModel& model,
                                     RandomTokens& tokens) {
  for (int64_t i = 1; i <= micro_batches; ++i) {
    DT_ASSIGN_OR_RETURN(const Batch batch, tokens.Next());
    DT_RETURN_IF_ERROR(
        engine.Backward(model.loss(batch), {.last_micro_batch = i == micro_batches}));
  }
  return engine.Update();
}

// A step of the warm-up that CUDA graphs leave to eager operations: a graph that is launched has
// kernels alone, and no operation with shapes for the roofline.
constexpr int kEagerStep = 1;

absl::Status Synchronize(Job& job) {
  return job.device().is_cpu() ? absl::OkStatus() : job.state().device->Synchronize();
}

// Warm-up, measured steps, one profiled step. No number of a step is read before the last is
// queued: a GPU then never waits for the host.
absl::Status TakeSteps(const MfuOptions& options, Job& job, Engine& engine, BenchModel& model,
                       RandomTokens& tokens, MfuFacts& facts) {
  StepReport last;
  const auto step = [&]() -> absl::Status {
    DT_ASSIGN_OR_RETURN(last,
                        engine.Step(tokens, [&](const Batch& batch) { return model.loss(batch); }));
    return absl::OkStatus();
  };
  const int64_t few = options.short_micro_batches;
  const auto short_step = [&]() -> absl::Status {
    DT_ASSIGN_OR_RETURN(last, ShortStep(few, engine, model, tokens));
    return absl::OkStatus();
  };
  const auto warm_up = [&] { return few > 0 ? short_step() : step(); };
  for (int i = 0; i < options.warm_up; ++i) {
    if (i == kEagerStep && facts.on_gpu) {
      DT_ASSIGN_OR_RETURN(const StepProfile eager, ProfileStep(warm_up, facts.on_gpu));
      facts.groups = eager.groups;
    } else {
      DT_RETURN_IF_ERROR(warm_up());
    }
  }
  for (int i = 0; i < UnmeasuredWholeSteps(options); ++i) {
    DT_RETURN_IF_ERROR(step());
  }
  DT_ASSIGN_OR_RETURN(const MeasuredSteps measured,
                      MeasureSteps(
                          options.steps, step, [&] { return Synchronize(job); },
                          [] { return Clock::Real().MonotonicNanos(); }));
  facts.step_seconds = measured.call_s;
  facts.measured_s = facts.on_gpu ? measured.total_s : 0;
  facts.loss = last.loss;  // Waits for the device.
  facts.memory_peak_bytes = MemoryPeakBytes(*job.state().device);
  const auto whole_step = [&]() -> absl::Status {
    DT_RETURN_IF_ERROR(few > 0 ? short_step() : step());
    facts.loss = last.loss;
    return absl::OkStatus();
  };
  DT_ASSIGN_OR_RETURN(const StepProfile profile, ProfileStep(whole_step, facts.on_gpu));
  facts.breakdown = profile.breakdown;
  facts.kernels = profile.kernels;
  facts.idle_after = profile.idle_after;
  if (!profile.groups.empty()) {
    facts.groups = profile.groups;
  }
  facts.profiled_step_s = profile.seconds;
  return absl::OkStatus();
}

absl::StatusOr<MfuFacts> Measure(const MfuOptions& options, const ModelShape& shape, Job& job,
                                 const BenchDevice& device) {
  MfuFacts facts;
  facts.model = shape.name;
  Describe(options, job, device, facts);
  DT_RETURN_IF_ERROR(FindPeak(options, device, facts));
  const at::ScalarType type = options.dtype == "fp32" ? at::kFloat : at::kBFloat16;
  const at::ScalarType factors = FactorType(options.dtype);
  DT_ASSIGN_OR_RETURN(const MachineRates before,
                      RatesOfAll(job, device.device, factors, /*model=*/false));
  ResetMemoryPeak(*job.state().device);
  DT_ASSIGN_OR_RETURN(BenchModel model, MakeModel(job, shape, type));
  facts.shape = model.flops;
  facts.low_parameters = options.dtype == "fp8" ? model.layer_parameters : 0;
  if (options.recompute == "full") {
    facts.recomputed_parameters = model.layer_parameters;
    facts.recomputed_width = AttentionWidth(model.flops);
  }
  DT_ASSIGN_OR_RETURN(
      const auto engine,
      Engine::Create(job, *model.module,
                     {.flops_per_sample = StrictFlopsPerToken(facts.shape, facts.sequence)}));
  RandomTokens tokens(options, shape.vocabulary, device.device, job.rank());
  DT_RETURN_IF_ERROR(TakeSteps(options, job, *engine, model, tokens, facts));
  DT_ASSIGN_OR_RETURN(const MachineRates after,
                      RatesOfAll(job, device.device, factors, /*model=*/true));
  const MachineRates rates = Best(before, after);
  facts.gemm_flops_per_s = rates.gemm_flops_per_s;
  facts.gemm_size = rates.gemm_size;
  facts.copy_bytes_per_s = rates.copy_bytes_per_s;
  if (facts.peak_flops_per_s == 0) {
    facts.peak_flops_per_s = facts.gemm_flops_per_s;
    facts.peak_is_gemm_rate = true;
    facts.peak_source = "the fastest GEMM of this run (CPUs have no datasheet peak)";
  }
  DT_RETURN_IF_ERROR(Reduce(job, facts.memory_peak_bytes, comm::ReduceOp::kMax));
  return facts;
}

// `provenance`: of the moment before the measurement.
absl::Status WriteResults(const MfuOptions& options, const MfuFacts& facts, const Json& provenance,
                          std::FILE* out) {
  Json results = MfuJson(facts);
  results.update(provenance);
  const std::string json = DumpJson(results, 2) + "\n";
  std::fputs(options.json_file == "-" ? json.c_str() : MfuTable(facts).c_str(), out);
  std::fflush(out);
  if (!options.json_file.empty() && options.json_file != "-") {
    DT_RETURN_IF_ERROR(WriteFileAtomic(options.json_file, json));
  }
  if (!options.svg_file.empty()) {
    DT_RETURN_IF_ERROR(WriteFileAtomic(options.svg_file, RooflineSvg(MfuRoofline(facts))));
  }
  return absl::OkStatus();
}

// A folder for the run's records when no launcher names one; removed at the end.
absl::StatusOr<std::string> TemporaryFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "dtrain-bench-mfu-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("making a folder ", path));
  }
  return path;
}

// `job` outlives the call, so that its agent hears how it ended.
absl::Status Run(MfuOptions options, std::FILE* out, std::unique_ptr<Job>& job) {
  DT_ASSIGN_OR_RETURN(const ModelShape shape, ReadModel(options));
  DT_RETURN_IF_ERROR(CheckOptions(shape.name, shape.positions, options));
  DT_ASSIGN_OR_RETURN(const JobEnv env, ResolveJobEnv(ReadEnvironment()));
  DT_RETURN_IF_ERROR(CheckDevice(options.device));
  JobOptions job_options{.program = "dtrain-bench-mfu",
                         .overrides = EngineSettings(options, env.world_size),
                         .fresh = true};
  std::string folder;
  if (env.world_size == 1 && env.run_dir.empty()) {
    DT_ASSIGN_OR_RETURN(folder, TemporaryFolder());
    job_options.run_dir = folder;
  }
  const absl::Cleanup remove = [&] {
    std::error_code ignored;
    if (!folder.empty()) {
      std::filesystem::remove_all(folder, ignored);
    }
  };
  DT_ASSIGN_OR_RETURN(job, Job::Create(job_options));
  const Json provenance = Provenance();
  DT_ASSIGN_OR_RETURN(const MfuFacts facts, Measure(options, shape, *job, DeviceOf(*job)));
  return job->rank() == 0 ? WriteResults(options, facts, provenance, out) : absl::OkStatus();
}

int Main(int argc, char** argv) {
  MfuOptions options;
  if (const int code = ParseMfuOptions(argc, argv, options); code >= 0) {
    return code;
  }
  // The profiler looks for a GPU on its own; that there is none is no news.
  setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  // The engine's messages go to stderr, so that standard output is the result alone.
  std::FILE* const out = fdopen(dup(STDOUT_FILENO), "w");
  dup2(STDERR_FILENO, STDOUT_FILENO);
  absl::Status status;
  std::unique_ptr<Job> job;
  try {
    status = Run(options, out, job);
  } catch (const std::exception& error) {   // From LibTorch or std.
    const std::string text = error.what();  // LibTorch appends a backtrace.
    status = absl::InternalError(text.substr(0, text.find('\n')));
  }
  const int code = ExitCodeFor(status);
  if (job != nullptr) {
    ReportEnd(&job->state(), status, code);
  } else if (!status.ok()) {
    std::fprintf(stderr, "dtrain bench mfu: %s\n", std::string(status.message()).c_str());
  }
  return code;
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) { return dtrain::bench::Main(argc, argv); }
