// Measures the engine's own time for each parameter tensor in a step: hooks, buckets and Update,
// without the time inside ATen operations.
//
// Models of N tensors of one element each, forward and backward through one operation a tensor; the
// same graph is timed without an engine (plain backward and .grad reset) and the difference is
// divided by N. One rank: no communication. Prints a line for each N; with `--json -` it prints one
// line of JSON after the job's greeting.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "dtrain/dtrain.h"

namespace {

class ManyTensors : public torch::nn::Module {
 public:
  explicit ManyTensors(int count) {
    for (int i = 0; i < count; ++i) {
      parameters_.push_back(register_parameter(absl::StrCat("p", i), at::ones({1})));
    }
  }
  at::Tensor Loss() { return at::cat(parameters_).sum(); }
  const std::vector<at::Tensor>& tensors() const { return parameters_; }

 private:
  std::vector<at::Tensor> parameters_;
};

struct Nothing {
  absl::StatusOr<int> Next() { return 0; }
};

double Seconds(absl::FunctionRef<void()> body) {
  const int64_t start = dtrain::Clock::Real().MonotonicNanos();
  body();
  return static_cast<double>(dtrain::Clock::Real().MonotonicNanos() - start) * 1e-9;
}

// Median over rounds of (engine step - plain step) / tensors, in microseconds.
double MicrosPerTensor(dtrain::Job& job, int count) {
  ManyTensors plain(count);
  ManyTensors flat(count);
  auto engine = dtrain::Engine::Create(job, flat);
  DT_CHECK_OK(engine.status());
  Nothing source;
  const auto engine_step = [&] {
    DT_CHECK_OK((*engine)->Step(source, [&](int) { return flat.Loss(); }).status());
  };
  const auto plain_step = [&] {
    plain.Loss().backward();
    for (const at::Tensor& p : plain.tensors()) {
      p.mutable_grad().reset();
    }
  };
  for (int i = 0; i < 20; ++i) {
    engine_step();
    plain_step();
  }
  std::vector<double> rounds;
  const int steps = std::max(4, 4000 / count);
  for (int round = 0; round < 15; ++round) {
    double with = 0;
    double without = 0;
    for (int i = 0; i < steps; ++i) {
      with += Seconds(engine_step);
      without += Seconds(plain_step);
    }
    rounds.push_back((with - without) / steps / count * 1e6);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc == 3 && std::strcmp(argv[1], "--json") == 0;
  dtrain::JobOptions options;
  options.program = "bench_bookkeeping";
  options.run_dir = absl::StrFormat("/tmp/dtrain-bookkeeping-%d", getpid());
  options.overrides = {"train_batch_size=1", "metrics.interval=1000000"};
  auto job = dtrain::Job::Create(options);
  DT_CHECK_OK(job.status());
  dtrain::Json rows = dtrain::Json::array();
  for (const int count : {10, 100, 1000}) {
    const double micros = MicrosPerTensor(**job, count);
    rows.push_back({{"tensors", count}, {"us_per_tensor", micros}});
    if (!json) {
      absl::PrintF("%5d tensors: %.3f us a tensor\n", count, micros);
    }
  }
  if (json) {
    absl::PrintF("%s\n", dtrain::DumpJson(rows));
  }
  return 0;
}
