// The fused classifier beside LibTorch's linear and cross_entropy: forward and backward of both, in
// turns in one process, and the most bytes of tensors that each had beyond the gradients.
//
// Prints a line a vocabulary and the goals; --json FILE writes them too.
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
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/version.h"
#include "dtrain/ops.h"
#include "tests/runtime/tensor_bytes.h"

namespace dtrain::bench {
namespace {

constexpr double kOverEager = 1.0;
// A chunk's logits in fp32 (runtime/ops/linear_cross_entropy.cc), and 1 MiB for what is small.
constexpr double kPeakMibMax = 65;

struct Taken {
  double seconds = 0;
  double peak_mib = 0;
};

template <class Loss>
Taken Once(at::Tensor& hidden, at::Tensor& weight, Loss loss) {
  hidden.mutable_grad().reset();
  weight.mutable_grad().reset();
  const auto bytes = std::make_shared<testing::TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  const int64_t start = Clock::Real().MonotonicNanos();
  loss().backward();
  const int64_t end = Clock::Real().MonotonicNanos();
  const int64_t gradients = (hidden.numel() + weight.numel()) * 4;
  return {static_cast<double>(end - start) * 1e-9,
          static_cast<double>(bytes->peak() - gradients) / (1 << 20)};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Options {
  int64_t tokens = 2048;
  int64_t width = 768;
  std::vector<int64_t> vocabularies = {8192, 32768, 65536};
  int rounds = 5;
  int threads = 2;
  std::string json;
};

Json Measure(const Options& options, int64_t vocab) {
  at::Tensor hidden = at::randn({options.tokens, options.width}).requires_grad_();
  at::Tensor weight = (at::randn({vocab, options.width}) * 0.02).requires_grad_();
  const at::Tensor targets = at::randint(vocab, {options.tokens}, at::kLong);
  const auto fused = [&] { return ops::LinearCrossEntropy(hidden, weight, targets).sum; };
  const auto eager = [&] {
    return at::cross_entropy_loss(at::linear(hidden, weight), targets, {}, at::Reduction::Sum);
  };
  std::vector<double> fused_s, eager_s, ratios;
  Taken ours, theirs;
  for (int round = -1; round < options.rounds; ++round) {
    if (round % 2 == 0) {
      ours = Once(hidden, weight, fused);
      theirs = Once(hidden, weight, eager);
    } else {
      theirs = Once(hidden, weight, eager);
      ours = Once(hidden, weight, fused);
    }
    if (round >= 0) {  // The first warms up.
      fused_s.push_back(ours.seconds);
      eager_s.push_back(theirs.seconds);
      ratios.push_back(theirs.seconds / ours.seconds);
    }
  }
  return {{"vocabulary", vocab},
          {"fused_s", Median(fused_s)},
          {"eager_s", Median(eager_s)},
          {"over_eager", Median(ratios)},
          {"fused_peak_mib", ours.peak_mib},
          {"eager_peak_mib", theirs.peak_mib}};
}

Json Goal(const std::string& name, double measured, const char* op, double target) {
  const bool ok = op[0] == '<' ? measured <= target : measured >= target;
  absl::PrintF("goal %s measured %.3f target %s %.2f %s\n", name, measured, op, target,
               ok ? "ok" : "short");
  return {{"name", name}, {"measured", measured}, {"op", op}, {"target", target}, {"ok", ok}};
}

int Run(const Options& options) {
  at::set_num_threads(options.threads);
  Json json = {{"bench", "classifier"},    {"commit", kCommit},          {"tokens", options.tokens},
               {"width", options.width},   {"threads", options.threads}, {"rounds", options.rounds},
               {"results", Json::array()}, {"goals", Json::array()}};
  absl::PrintF("%10s %10s %10s %7s %12s %12s\n", "vocabulary", "fused s", "eager s", "ratio",
               "fused MiB", "eager MiB");
  for (const int64_t vocab : options.vocabularies) {
    const Json row = Measure(options, vocab);
    absl::PrintF("%10d %10.3f %10.3f %7.2f %12.1f %12.1f\n", vocab, row["fused_s"].get<double>(),
                 row["eager_s"].get<double>(), row["over_eager"].get<double>(),
                 row["fused_peak_mib"].get<double>(), row["eager_peak_mib"].get<double>());
    json["results"].push_back(row);
  }
  for (const Json& row : json["results"]) {
    const std::string name = absl::StrCat("classifier.", row["vocabulary"].get<int64_t>());
    json["goals"].push_back(
        Goal(name + ".vs_eager", row["over_eager"].get<double>(), ">=", kOverEager));
    json["goals"].push_back(
        Goal(name + ".peak_mib", row["fused_peak_mib"].get<double>(), "<=", kPeakMibMax));
  }
  if (!options.json.empty()) {
    if (const absl::Status status = WriteFileAtomic(options.json, DumpJson(json, 2) + "\n");
        !status.ok()) {
      std::cerr << status << "\n";
      return ExitCodeFor(status);
    }
  }
  return kExitOk;
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) {
  dtrain::bench::Options options;
  CLI::App app("The fused classifier beside linear and cross_entropy", "bench_classifier");
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
  return dtrain::bench::Run(options);
}
