// dtrain-bench-kernels-cuda: each CUDA kernel's rate beside this GPU's copy rate; cublasLt's
// products beside its best one.
//
// A round is copies, the kernel, copies; each is timed by events around many launches on buffers
// several times as large as the L2 cache, filled with random numbers. Bytes are those of each
// operand once. Printed are medians over rounds. Without a usable GPU: one line and exit 64.
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/console/command_line.h"
#include "base/dl/cuda_versions.h"
#include "base/file.h"
#include "base/json.h"
#include "base/provenance.h"
#include "base/status.h"
#include "bench/goal_line.h"
#include "bench/kernels/cuda_case.h"
#include "bench/kernels/cuda_products.h"
#include "bench/kernels/cuda_timer.h"

namespace dtrain::bench {
namespace {

constexpr int kWarmUp = 10;
constexpr int kLaunchesAProduct = 10;  // A product takes as long as so many launches of a kernel.
// Goals as shares of the copy rate; docs/PERFORMANCE.md has the reasons.
constexpr double kForwardGoal = 0.95;
constexpr double kBackwardGoal = 0.90;

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& some : {CudaFlatCases(), CudaRowCases(), CudaTokenCases(), CudaNarrowCases()}) {
    cases.insert(cases.end(), some.begin(), some.end());
  }
  return cases;
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
          {"goal", goal}};
}

// The runtime is this program's own, linked in.
absl::Status CheckGpu() {
  CudaVersions versions = ReadCudaVersions();
  cudaRuntimeGetVersion(&versions.runtime);
  DT_RETURN_IF_ERROR(Annotate(CheckCudaVersions(versions), "no GPU can be used"));
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  return error == cudaSuccess
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrFormat(
                   "no GPU can be used: %s (driver CUDA %s, this program is built for CUDA %s); "
                   "see what nvidia-smi says of it",
                   cudaGetErrorString(error), CudaVersionText(versions.driver),
                   CudaVersionText(versions.runtime)));
}

absl::Status Run(const Options& options) {
  DT_RETURN_IF_ERROR(CheckGpu());
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  const Arena arena = MakeArena(options.elements);
  Timer timer;
  Json json = {{"bench", "kernels-cuda"}};
  json.update(Provenance());
  json.update(Json{{"gpu", properties.name},
                   {"multiprocessors", properties.multiProcessorCount},
                   {"l2_bytes", properties.l2CacheSize},
                   {"elements", options.elements},
                   {"hidden", kHidden},
                   {"rounds", options.rounds},
                   {"results", Json::array()}});
  absl::PrintF("%s, %d elements a stream, %d rounds of %d launches\n%-26s %9s %9s %9s %7s\n",
               properties.name, options.elements, options.rounds, options.launches, "kernel", "us",
               "GB/s", "copy", "%");
  for (const Case& one : Cases()) {
    if (!absl::StrContains(one.name, options.filter)) {
      continue;
    }
    Json row = MeasureCase(one, arena, options, timer);
    absl::PrintF("%-26s %9.1f %9.1f %9.1f %7.1f\n", one.name, row["us"].get<double>(),
                 row["gb_per_s"].get<double>(), row["copy_gb_per_s"].get<double>(),
                 100 * row["copy_fraction"].get<double>());
    row["verdict"] = JudgeShare("kernels_cuda." + one.name, row["copy_fraction"].get<double>(),
                                row["goal"].get<double>())["verdict"];
    json["results"].push_back(row);
  }
  // A machine without cublasLt has its kernels measured all the same.
  const absl::StatusOr<Json> products = MeasureProducts(
      arena, {options.filter, options.rounds, std::max(1, options.launches / kLaunchesAProduct)},
      timer);
  if (products.ok()) {
    json["products"] = *products;
  } else {
    absl::PrintF("products not measured: %s\n", products.status().message());
    json["products"] = {{"error", std::string(products.status().message())}};
  }
  return options.json.empty() ? absl::OkStatus()
                              : WriteFileAtomic(options.json, DumpJson(json, 2) + "\n");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures each CUDA kernel beside the rate at which the GPU copies memory. A kernel at 100 % "
      "is as fast as the memory.",
      "dtrain bench kernels-cuda");
  app.footer(
      "Example:\n"
      "  dtrain bench kernels-cuda --filter adamw --json results.json");
  app.add_option("--json", options.json, "Also write the results to FILE. Default: no file")
      ->type_name("FILE");
  app.add_option("--filter", options.filter,
                 "Measure only kernels whose name contains TEXT. Default: all");
  app.add_option("--elements", options.elements,
                 "Elements of each array, rounded down to a multiple of 65536")
      ->check(CLI::Range(int64_t{65536}, int64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds of each kernel; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--launches", options.launches, "Number of launches that are timed together")
      ->check(CLI::Range(2, 100000))
      ->capture_default_str();
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
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
