// dtrain-bench-kernels-cuda: each CUDA kernel's rate beside this GPU's copy rate.
//
// A round is copies, the kernel, copies; each is timed by events around many launches on buffers
// several times as large as the L2 cache, filled with random numbers. Bytes are those of each
// operand once. Printed are medians over rounds. Without a usable GPU: one line and exit 64.
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/prng.h"
#include "base/status.h"
#include "base/version.h"
#include "bench/kernels/probe.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/flat.h"
#include "kernels/grad_norm.h"
#include "kernels/rmsnorm.h"

namespace dtrain::bench {
namespace {

constexpr int64_t kHidden = 4096;
constexpr int kStreams = 6;
constexpr int kWarmUp = 10;
// Of the copy rate: docs/PERFORMANCE.md.
constexpr double kForwardGoal = 0.95;
constexpr double kBackwardGoal = 0.90;

void Check(cudaError_t error, const char* what) {
  DT_CHECK(error == cudaSuccess) << " " << what << ": " << cudaGetErrorString(error);
}

// Device memory for the life of the program.
template <class T>
T* Allocate(int64_t count) {
  void* data = nullptr;
  Check(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(T)), "cudaMalloc");
  Check(cudaMemset(data, 0, static_cast<size_t>(count) * sizeof(T)), "cudaMemset");
  return static_cast<T*>(data);
}

struct Arena {
  int64_t elements = 0;
  char* streams[kStreams] = {};
  float* rstd = nullptr;
  float* workspace = nullptr;
  double* block_sums = nullptr;
  double* sum = nullptr;
  kernels::AdamWStepScalars* adamw = nullptr;

  template <class T>
  T* Stream(int i) const {
    return reinterpret_cast<T*>(streams[i]);
  }
  int64_t rows() const { return elements / kHidden; }
};

// Random numbers in [0.5, 1), read as fp32 and, both halves alike, as bf16.
Arena MakeArena(int64_t elements) {
  std::vector<uint32_t> host(1 << 20);
  SplitMix64 random(1);
  for (uint32_t& bits : host) {
    const auto half = static_cast<uint32_t>(0x3f00 + random.Below(0x80));
    bits = half << 16 | half;
  }
  Arena arena{.elements = elements};
  for (char*& stream : arena.streams) {
    stream = reinterpret_cast<char*>(Allocate<float>(elements));
    for (int64_t at = 0; at < elements; at += static_cast<int64_t>(host.size())) {
      const auto count = std::min(static_cast<int64_t>(host.size()), elements - at);
      Check(cudaMemcpy(reinterpret_cast<float*>(stream) + at, host.data(),
                       static_cast<size_t>(count) * sizeof(float), cudaMemcpyHostToDevice),
            "filling a stream");
    }
  }
  arena.rstd = Allocate<float>(arena.rows());
  Check(cudaMemcpy(arena.rstd, arena.streams[0], static_cast<size_t>(arena.rows()) * sizeof(float),
                   cudaMemcpyDeviceToDevice),
        "filling rstd");
  arena.workspace = Allocate<float>(kernels::RmsNormWorkspaceFloatsCuda(arena.rows(), kHidden));
  arena.block_sums = Allocate<double>(kernels::NormBlocks(0, elements));
  arena.sum = Allocate<double>(1);
  arena.adamw = Allocate<kernels::AdamWStepScalars>(1);
  const kernels::AdamWStepScalars scalars =
      kernels::MakeAdamWStepScalars({.lr = 1e-6, .weight_decay = 0.1, .step = 5});
  Check(cudaMemcpy(arena.adamw, &scalars, sizeof(scalars), cudaMemcpyHostToDevice), "scalars");
  return arena;
}

struct Case {
  std::string name;
  StreamMix mix;
  std::function<absl::Status(const Arena&, CudaStream)> run;
};

template <class T>
absl::Status RmsForward(const Arena& a, bool residual, CudaStream stream) {
  return kernels::RmsNormForwardCuda(
      kernels::RmsNormForwardArgs<T>{.tokens = a.rows(),
                                     .hidden = kHidden,
                                     .x = a.Stream<T>(0),
                                     .residual = residual ? a.Stream<T>(1) : nullptr,
                                     .weight = a.Stream<T>(5),
                                     .sum = residual ? a.Stream<T>(2) : nullptr,
                                     .y = a.Stream<T>(3),
                                     .rstd = a.rstd},
      stream);
}

template <class T>
absl::Status RmsBackward(const Arena& a, bool residual, CudaStream stream) {
  return kernels::RmsNormBackwardCuda(
      kernels::RmsNormBackwardArgs<T>{.tokens = a.rows(),
                                      .hidden = kHidden,
                                      .h = a.Stream<T>(0),
                                      .weight = a.Stream<T>(5),
                                      .rstd = a.rstd,
                                      .dy = a.Stream<T>(1),
                                      .dsum = residual ? a.Stream<T>(2) : nullptr,
                                      .dh = a.Stream<T>(3),
                                      .dweight = a.Stream<T>(4),
                                      .workspace = a.workspace},
      stream);
}

template <class T>
absl::Status SwiGlu(const Arena& a, bool backward, CudaStream stream) {
  if (backward) {
    return kernels::GatedBackwardCuda(
        kernels::GatedBackwardArgs<T>{.activation = kernels::Activation::kSilu,
                                      .rows = a.rows(),
                                      .hidden = kHidden,
                                      .stride = kHidden,
                                      .gate = a.Stream<T>(0),
                                      .up = a.Stream<T>(1),
                                      .dout = a.Stream<T>(2),
                                      .dgate = a.Stream<T>(3),
                                      .dup = a.Stream<T>(4)},
        stream);
  }
  return kernels::GatedForwardCuda(
      kernels::GatedForwardArgs<T>{.activation = kernels::Activation::kSilu,
                                   .rows = a.rows(),
                                   .hidden = kHidden,
                                   .stride = kHidden,
                                   .gate = a.Stream<T>(0),
                                   .up = a.Stream<T>(1),
                                   .out = a.Stream<T>(2)},
      stream);
}

template <class T>
absl::Status SquareSum(const Arena& a, CudaStream stream) {
  DT_RETURN_IF_ERROR(
      kernels::BlockSquareSumsCuda(a.Stream<T>(0), 0, a.elements, a.block_sums, stream));
  return kernels::TreeSumCuda(a.block_sums, kernels::NormBlocks(0, a.elements), a.sum, stream);
}

// `operation` on fp32 and on bf16; `reads` and `writes` are streams of that type.
template <class Operation>
void AddBoth(std::vector<Case>& cases, const std::string& name, int reads, int writes,
             Operation operation) {
  cases.push_back(
      {name + "_f32", {.read4 = reads, .write4 = writes}, [=](const Arena& a, CudaStream stream) {
         return operation(float{}, a, stream);
       }});
  cases.push_back(
      {name + "_bf16", {.read2 = reads, .write2 = writes}, [=](const Arena& a, CudaStream stream) {
         return operation(BFloat16{}, a, stream);
       }});
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto adamw = [](bool copy) {
    return [copy](const Arena& a, CudaStream stream) {
      return kernels::AdamWCuda(a.elements, a.Stream<float>(0), a.Stream<float>(3),
                                a.Stream<float>(1), a.Stream<float>(2),
                                copy ? a.Stream<BFloat16>(4) : nullptr, a.adamw, stream);
    };
  };
  cases.push_back({"adamw_f32", {.read4 = 4, .write4 = 3, .in_place = 3}, adamw(false)});
  cases.push_back(
      {"adamw_f32_copy_bf16", {.read4 = 4, .write4 = 3, .write2 = 1, .in_place = 3}, adamw(true)});
  const auto flat = [](DType from, DType to) {
    return [=](const Arena& a, CudaStream stream) {
      return kernels::CopyCuda(a.elements, {a.streams[0], from}, {a.streams[1], to}, stream);
    };
  };
  cases.push_back(
      {"cast_f32_bf16", {.read4 = 1, .write2 = 1}, flat(DType::kFloat32, DType::kBFloat16)});
  cases.push_back(
      {"cast_bf16_f32", {.read2 = 1, .write4 = 1}, flat(DType::kBFloat16, DType::kFloat32)});
  cases.push_back({"accumulate_f32",
                   {.read4 = 2, .write4 = 1, .in_place = 1},
                   [](const Arena& a, CudaStream stream) {
                     return kernels::AccumulateCuda(a.elements, {a.streams[0], DType::kFloat32},
                                                    {a.streams[1], DType::kFloat32}, stream);
                   }});
  AddBoth(cases, "square_sum", 1, 0, [](auto type, const Arena& a, CudaStream stream) {
    return SquareSum<decltype(type)>(a, stream);
  });
  for (const bool residual : {false, true}) {
    const std::string name = residual ? "rmsnorm_add" : "rmsnorm";
    AddBoth(cases, name + "_forward", residual ? 2 : 1, residual ? 2 : 1,
            [=](auto type, const Arena& a, CudaStream stream) {
              return RmsForward<decltype(type)>(a, residual, stream);
            });
    AddBoth(cases, name + "_backward", residual ? 3 : 2, 1,
            [=](auto type, const Arena& a, CudaStream stream) {
              return RmsBackward<decltype(type)>(a, residual, stream);
            });
  }
  for (const bool backward : {false, true}) {
    AddBoth(cases, backward ? "swiglu_backward" : "swiglu_forward", backward ? 3 : 2,
            backward ? 2 : 1, [=](auto type, const Arena& a, CudaStream stream) {
              return SwiGlu<decltype(type)>(a, backward, stream);
            });
  }
  return cases;
}

// Times launches by events on one stream.
class Timer {
 public:
  Timer() {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    Check(cudaEventCreate(&begin_), "cudaEventCreate");
    Check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  // Seconds of one of `launches`.
  template <class Launch>
  double Seconds(int launches, Launch launch) {
    Check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < launches; ++i) {
      launch(stream_);
    }
    Check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    Check(cudaEventSynchronize(end_), "what was launched");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3 / launches;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Options {
  std::string json;
  std::string filter;
  int64_t elements = int64_t{64} << 20;
  int rounds = 9;
  int launches = 100;
};

Json MeasureCase(const Case& one, const Arena& arena, const Options& options, Timer& timer) {
  const auto bytes = static_cast<double>(one.mix.BytesPerElement() * arena.elements);
  const auto copy = [&](cudaStream_t stream) {
    Check(cudaMemcpyAsync(arena.streams[5], arena.streams[4],
                          static_cast<size_t>(arena.elements) * sizeof(float),
                          cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpyAsync");
  };
  const auto kernel = [&](cudaStream_t stream) { DT_CHECK_OK(one.run(arena, stream)); };
  timer.Seconds(kWarmUp, copy);
  timer.Seconds(kWarmUp, kernel);
  std::vector<double> rates;
  std::vector<double> copies;
  std::vector<double> fractions;
  for (int round = 0; round < options.rounds; ++round) {
    const double before = timer.Seconds(options.launches / 2, copy);
    const double seconds = timer.Seconds(options.launches, kernel);
    const double after = timer.Seconds(options.launches / 2, copy);
    const double copy_rate = 8.0 * static_cast<double>(arena.elements) / ((before + after) / 2);
    rates.push_back(bytes / seconds);
    copies.push_back(copy_rate);
    fractions.push_back(bytes / seconds / copy_rate);
  }
  const double goal = absl::StrContains(one.name, "backward") ? kBackwardGoal : kForwardGoal;
  return {{"name", one.name},
          {"us", bytes / Median(rates) * 1e6},
          {"gb_per_s", Median(rates) * 1e-9},
          {"copy_gb_per_s", Median(copies) * 1e-9},
          {"copy_fraction", Median(fractions)},
          {"goal", goal},
          {"ok", Median(fractions) >= goal}};
}

absl::Status Run(const Options& options) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices);
      error != cudaSuccess || devices == 0) {
    int driver = 0;
    int runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const std::string known = driver == 0 ? "no NVIDIA driver here"
                                          : absl::StrFormat("the driver knows CUDA %d.%d",
                                                            driver / 1000, driver % 1000 / 10);
    return absl::FailedPreconditionError(
        absl::StrFormat("no GPU can be used: %s (%s, this program is built for CUDA %d.%d)",
                        error == cudaSuccess ? "none found" : cudaGetErrorString(error), known,
                        runtime / 1000, runtime % 1000 / 10));
  }
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  const Arena arena = MakeArena(options.elements);
  Timer timer;
  Json json = {{"bench", "kernels-cuda"},
               {"commit", kCommit},
               {"gpu", properties.name},
               {"multiprocessors", properties.multiProcessorCount},
               {"l2_bytes", properties.l2CacheSize},
               {"elements", options.elements},
               {"hidden", kHidden},
               {"rounds", options.rounds},
               {"results", Json::array()}};
  absl::PrintF("%s, %d elements a stream, %d rounds of %d launches\n%-26s %9s %9s %9s %7s\n",
               properties.name, options.elements, options.rounds, options.launches, "kernel", "us",
               "GB/s", "copy", "%");
  for (const Case& one : Cases()) {
    if (!absl::StrContains(one.name, options.filter)) {
      continue;
    }
    const Json row = MeasureCase(one, arena, options, timer);
    absl::PrintF("%-26s %9.1f %9.1f %9.1f %7.1f\n", one.name, row["us"].get<double>(),
                 row["gb_per_s"].get<double>(), row["copy_gb_per_s"].get<double>(),
                 100 * row["copy_fraction"].get<double>());
    absl::PrintF("goal kernels_cuda.%s measured %.3f target >= %.2f %s\n", one.name,
                 row["copy_fraction"].get<double>(), row["goal"].get<double>(),
                 row["ok"].get<bool>() ? "ok" : "short");
    std::fflush(stdout);
    json["results"].push_back(row);
  }
  return options.json.empty() ? absl::OkStatus()
                              : WriteFileAtomic(options.json, DumpJson(json, 2) + "\n");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("CUDA kernels beside this GPU's copy rate.", "dtrain bench kernels-cuda");
  app.add_option("--json", options.json, "Write the results to this file");
  app.add_option("--filter", options.filter, "Only kernels whose name contains this");
  app.add_option("--elements", options.elements, "Elements of each stream, a multiple of 65536")
      ->check(CLI::Range(int64_t{65536}, int64_t{1} << 32));
  app.add_option("--rounds", options.rounds, "Rounds of each kernel")->check(CLI::Range(1, 1000));
  app.add_option("--launches", options.launches, "Launches that are timed together")
      ->check(CLI::Range(2, 100000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11's one way to report, --help included.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  options.elements = options.elements / 65536 * 65536;
  const absl::Status status = Run(options);
  if (!status.ok()) {
    std::fprintf(stderr, "dtrain bench kernels-cuda: %s\n", std::string(status.message()).c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) { return dtrain::bench::Main(argc, argv); }
