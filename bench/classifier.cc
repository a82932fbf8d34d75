// The fused classifier beside LibTorch's linear and cross_entropy: forward and backward of both, in
// turns in one process, and the most bytes of tensors that each had beyond the gradients.
//
// Prints a line a vocabulary and the goals; --json FILE writes them too. --device cuda takes the
// first GPU that is seen, with the kernels of the CUDA plugin; without one: one line and exit 64.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/provenance.h"
#include "base/status.h"
#include "bench/goal_line.h"
#include "dtrain/ops.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/plan/memory/classifier_plan.h"
#include "tests/runtime/testing/tensor_bytes.h"

namespace dtrain::bench {
namespace {

constexpr double kOverEager = 1.0;

struct Options {
  std::string device = "cpu";
  std::string dtype = "fp32";
  int64_t tokens = 2048;
  int64_t width = 768;
  std::vector<int64_t> vocabularies = {8192, 32768, 65536};
  int rounds = 5;
  int threads = 2;
  std::string json;

  at::ScalarType type() const { return dtype == "bf16" ? at::kBFloat16 : at::kFloat; }
};

// The logits of a chunk; for bf16 the gradients in fp32, before they are rounded; and what is
// small, which a GPU's allocator cuts into larger pieces.
double PeakMibMax(const Options& options, int64_t vocab, bool host) {
  const int64_t chunk = host ? plan::kClassifierChunkCpu : plan::kClassifierChunkGpu;
  const auto size = static_cast<int64_t>(at::elementSize(options.type()));
  const int64_t sums = size == 4 ? 0 : 4 * (options.tokens + vocab) * options.width;
  return static_cast<double>(chunk * size + sums) / (1 << 20) + (host ? 1 : 8);
}

struct Taken {
  double seconds = 0;
  double peak_mib = 0;
};

void Wait(const Device& device) {
  if (!device.is_host()) {
    DT_CHECK_OK(device.Synchronize());
  }
}

template <class Loss>
Taken Once(const Device& device, at::Tensor& hidden, at::Tensor& weight, Loss loss) {
  hidden.mutable_grad().reset();
  weight.mutable_grad().reset();
  const auto bytes = std::make_shared<testing::TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  Wait(device);
  const int64_t start = Clock::Real().MonotonicNanos();
  loss().backward();
  Wait(device);
  const int64_t end = Clock::Real().MonotonicNanos();
  const auto gradients = static_cast<int64_t>(hidden.nbytes() + weight.nbytes());
  return {static_cast<double>(end - start) * 1e-9,
          static_cast<double>(bytes->peak() - gradients) / (1 << 20)};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Json Measure(const Options& options, const Device& device, int64_t vocab) {
  const auto numbers = at::TensorOptions(device.tensors()).dtype(options.type());
  at::Tensor hidden = at::randn({options.tokens, options.width}, numbers).requires_grad_();
  at::Tensor weight = at::randn({vocab, options.width}, numbers).mul_(0.02).requires_grad_();
  const at::Tensor targets = at::randint(vocab, {options.tokens}, numbers.dtype(at::kLong));
  const auto fused = [&] { return ops::LinearCrossEntropy(hidden, weight, targets).sum; };
  const auto eager = [&] {
    return at::cross_entropy_loss(at::linear(hidden, weight), targets, {}, at::Reduction::Sum);
  };
  std::vector<double> fused_s, eager_s, ratios;
  Taken ours, theirs;
  for (int round = -1; round < options.rounds; ++round) {
    if (round % 2 == 0) {
      ours = Once(device, hidden, weight, fused);
      theirs = Once(device, hidden, weight, eager);
    } else {
      theirs = Once(device, hidden, weight, eager);
      ours = Once(device, hidden, weight, fused);
    }
    if (round >= 0) {  // The first warms up.
      fused_s.push_back(ours.seconds);
      eager_s.push_back(theirs.seconds);
      ratios.push_back(theirs.seconds / ours.seconds);
    }
  }
  // Logits and the gradients of both factors: three products.
  const double flops = 6.0 * static_cast<double>(options.tokens * options.width * vocab);
  return {{"vocabulary", vocab},
          {"fused_s", Median(fused_s)},
          {"eager_s", Median(eager_s)},
          {"fused_tflops", flops / Median(fused_s) * 1e-12},
          {"over_eager", Median(ratios)},
          {"fused_peak_mib", ours.peak_mib},
          {"eager_peak_mib", theirs.peak_mib}};
}

// Called before LibTorch is asked for anything, because a GPU cannot be opened afterwards.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const std::string& wish) {
  if (wish == "cpu") {
    return std::make_unique<Device>();
  }
  DT_ASSIGN_OR_RETURN(const DeviceChoice choice, ChooseDevice(wish, FindGpus(/*local_rank=*/0)));
  return OpenCudaDevice(choice.index);
}

absl::Status Run(const Options& options) {
  DT_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, OpenDevice(options.device));
  at::set_num_threads(options.threads);
  Json json = {{"bench", "classifier"}};
  json.update(Provenance());
  json.update(Json{{"device", options.device},
                   {"device_name", device->description()},
                   {"dtype", options.dtype},
                   {"tokens", options.tokens},
                   {"width", options.width},
                   {"threads", options.threads},
                   {"rounds", options.rounds},
                   {"results", Json::array()},
                   {"goals", Json::array()}});
  absl::PrintF("%10s %10s %10s %7s %9s %12s %12s\n", "vocabulary", "fused s", "eager s", "ratio",
               "fused TF", "fused MiB", "eager MiB");
  for (const int64_t vocab : options.vocabularies) {
    const Json row = Measure(options, *device, vocab);
    absl::PrintF("%10d %10.4f %10.4f %7.2f %9.2f %12.1f %12.1f\n", vocab,
                 row["fused_s"].get<double>(), row["eager_s"].get<double>(),
                 row["over_eager"].get<double>(), row["fused_tflops"].get<double>(),
                 row["fused_peak_mib"].get<double>(), row["eager_peak_mib"].get<double>());
    json["results"].push_back(row);
  }
  for (const Json& row : json["results"]) {
    const auto vocab = row["vocabulary"].get<int64_t>();
    const std::string name = absl::StrCat("classifier.", vocab);
    json["goals"].push_back(
        JudgeGoal(name + ".vs_eager", row["over_eager"].get<double>(), ">=", kOverEager));
    json["goals"].push_back(JudgeGoal(name + ".peak_mib", row["fused_peak_mib"].get<double>(),
                                      "<=", PeakMibMax(options, vocab, device->is_host())));
  }
  return options.json.empty() ? absl::OkStatus()
                              : WriteFileAtomic(options.json, DumpJson(json, 2) + "\n");
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) {
  dtrain::bench::Options options;
  CLI::App app("The fused classifier beside linear and cross_entropy", "bench_classifier");
  app.add_option("--device", options.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--dtype", options.dtype, "Of hidden, weight and their gradients")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--tokens", options.tokens)->check(CLI::Range(1, 1 << 20));
  app.add_option("--width", options.width)->check(CLI::Range(1, 1 << 14));
  app.add_option("--vocabularies", options.vocabularies)->check(CLI::Range(2, 1 << 20));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_option("--json", options.json, "Write the results to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11's one way to report, --help included.
    return app.exit(error) == 0 ? dtrain::kExitOk : dtrain::kExitUsage;
  }
  const absl::Status status = dtrain::bench::Run(options);
  if (!status.ok()) {
    std::cerr << "bench_classifier: " << status.message() << "\n";
  }
  return dtrain::ExitCodeFor(status);
}
