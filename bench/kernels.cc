// bench_kernels: each CPU kernel beside a probe with the same mix of read and write streams.
//
// A round is probe, kernel, probe; the cases' rounds are interleaved, their order reversed every
// second time, and a round whose two probes differ by more than 10% is discarded. Printed are the
// medians, in GB/s at the bytes that the mix counts, and the median of the rounds' ratios.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/version.h"
#include "bench/kernels_probe.h"
#include "kernels/adamw.h"
#include "kernels/flat.h"
#include "kernels/grad_norm.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include "kernels/variant.h"

namespace dtrain::bench {
namespace {

constexpr int64_t kHidden = 2048;
constexpr int kStreamsMax = 6;
constexpr double kProbeDriftMax = 0.10;
constexpr double kGoalFraction = 0.95;

// The kernel and the probe run in the same memory, one after the other.
struct Arena {
  explicit Arena(int64_t element_count)
      : elements(element_count), stride(element_count * 4 + 8192) {
    // Streams 8 KiB off a power of two, so that they do not fall on the same cache sets.
    base = static_cast<char*>(std::aligned_alloc(4096, static_cast<size_t>(stride * kStreamsMax)));
    DT_CHECK(base != nullptr) << " no memory for " << kStreamsMax << " streams of " << stride;
    std::memset(base, 0, static_cast<size_t>(stride * kStreamsMax));
    scratch.resize(static_cast<size_t>(kernels::NormBlocks(0, elements)));
    rstd.resize(static_cast<size_t>(elements / kHidden));
    workspace.resize(
        static_cast<size_t>(kernels::RmsNormWorkspaceFloats(elements / kHidden, kHidden)));
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { std::free(base); }

  template <class T>
  T* Stream(int i) const {
    return reinterpret_cast<T*>(base + i * stride);
  }

  int64_t elements;
  int64_t stride;
  char* base;
  std::vector<double> scratch;
  std::vector<float> rstd, workspace;
};

// Equal parts in whole grains, one a thread.
struct Threads {
  int count;
  void operator()(int64_t n, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> body) const {
    const int64_t part = ((n + count - 1) / count + grain - 1) / grain * grain;
    std::vector<std::thread> others;
    for (int64_t begin = part; begin < n; begin += part) {
      others.emplace_back([=] { body(begin, std::min(n, begin + part)); });
    }
    body(0, std::min(n, part));
    for (std::thread& thread : others) {
      thread.join();
    }
  }
};

using Kernel = std::function<void(Arena&, const Threads&)>;
struct Case {
  std::string name;
  StreamMix mix;
  Kernel run;
};

template <class T>
kernels::RmsNormForwardArgs<T> RmsForward(Arena& a, bool residual) {
  return {.tokens = a.elements / kHidden,
          .hidden = kHidden,
          .x = a.Stream<T>(0),
          .residual = residual ? a.Stream<T>(1) : nullptr,
          .weight = a.Stream<T>(5),
          .sum = residual ? a.Stream<T>(2) : nullptr,
          .y = a.Stream<T>(3),
          .rstd = a.rstd.data()};
}

template <class T>
kernels::RmsNormBackwardArgs<T> RmsBackward(Arena& a, bool residual) {
  return {.tokens = a.elements / kHidden,
          .hidden = kHidden,
          .h = a.Stream<T>(0),
          .weight = a.Stream<T>(5),
          .rstd = a.rstd.data(),
          .dy = a.Stream<T>(1),
          .dsum = residual ? a.Stream<T>(2) : nullptr,
          .dh = a.Stream<T>(3),
          .dweight = a.Stream<T>(4),
          .workspace = a.workspace.data()};
}

std::vector<Case> Cases() {
  using F = float;
  using B = BFloat16;
  constexpr DType kF = DType::kFloat32;
  constexpr DType kB = DType::kBFloat16;
  const auto adamw = [](bool copy) -> Kernel {
    return [copy](Arena& a, const Threads& t) {
      kernels::AdamWCpu(a.elements, a.Stream<F>(0), a.Stream<F>(3), a.Stream<F>(1), a.Stream<F>(2),
                        copy ? a.Stream<B>(4) : nullptr, {.weight_decay = 0.1, .step = 5}, t);
    };
  };
  const auto flat = [](auto operation, DType from, DType to) -> Kernel {
    return [=](Arena& a, const Threads& t) {
      operation(a.elements, kernels::ConstFlat{a.Stream<F>(0), from},
                kernels::MutableFlat{a.Stream<F>(1), to}, t);
    };
  };
  const auto scale = [](int64_t n, kernels::ConstFlat from, kernels::MutableFlat to,
                        const Threads& t) { kernels::ScaleCpu(n, from, to, 0.5F, t); };
  const auto copy = [](int64_t n, kernels::ConstFlat from, kernels::MutableFlat to,
                       const Threads& t) { kernels::CopyCpu(n, from, to, t); };
  const auto add = [](int64_t n, kernels::ConstFlat from, kernels::MutableFlat to,
                      const Threads& t) { kernels::AccumulateCpu(n, from, to, t); };
  std::vector<Case> cases = {
      {"adamw_f32", {.read4 = 4, .write4 = 3, .in_place = 3}, adamw(false)},
      {"adamw_f32_copy_bf16", {.read4 = 4, .write4 = 3, .write2 = 1, .in_place = 3}, adamw(true)},
      {"adamw_bf16_copy_bf16",
       {.read4 = 3, .read2 = 1, .write4 = 3, .write2 = 1, .in_place = 3},
       [](Arena& a, const Threads& t) {
         kernels::AdamWCpuBf16Grad(a.elements, a.Stream<F>(0), a.Stream<B>(3), a.Stream<F>(1),
                                   a.Stream<F>(2), a.Stream<B>(4), {.weight_decay = 0.1, .step = 5},
                                   t);
       }},
      {"square_sum_f32",
       {.read4 = 1},
       [](Arena& a, const Threads& t) {
         kernels::SquareSumCpu(a.Stream<F>(0), 0, a.elements, a.scratch.data(), t);
       }},
      {"square_sum_bf16",
       {.read2 = 1},
       [](Arena& a, const Threads& t) {
         kernels::SquareSumCpu(a.Stream<B>(0), 0, a.elements, a.scratch.data(), t);
       }},
      {"copy_f32", {.read4 = 1, .write4 = 1}, flat(copy, kF, kF)},
      {"cast_f32_bf16", {.read4 = 1, .write2 = 1}, flat(copy, kF, kB)},
      {"cast_bf16_f32", {.read2 = 1, .write4 = 1}, flat(copy, kB, kF)},
      {"scale_f32", {.read4 = 1, .write4 = 1}, flat(scale, kF, kF)},
      {"accumulate_f32", {.read4 = 2, .write4 = 1, .in_place = 1}, flat(add, kF, kF)},
  };
  // Forward and backward of the two block operations, in both dtypes.
  const auto both = [&](const std::string& name, int reads, int writes, Kernel f32, Kernel bf16) {
    cases.push_back({name + "_f32", {.read4 = reads, .write4 = writes}, std::move(f32)});
    cases.push_back({name + "_bf16", {.read2 = reads, .write2 = writes}, std::move(bf16)});
  };
  for (const bool residual : {false, true}) {
    const std::string name = residual ? "rmsnorm_add" : "rmsnorm";
    const auto forward = [=](auto type) -> Kernel {
      return [=](Arena& a, const Threads& t) {
        kernels::RmsNormForwardCpu(RmsForward<decltype(type)>(a, residual), t);
      };
    };
    const auto backward = [=](auto type) -> Kernel {
      return [=](Arena& a, const Threads& t) {
        kernels::RmsNormBackwardCpu(RmsBackward<decltype(type)>(a, residual), t);
      };
    };
    both(name + "_forward", residual ? 2 : 1, residual ? 2 : 1, forward(F{}), forward(B{}));
    both(name + "_backward", residual ? 3 : 2, 1, backward(F{}), backward(B{}));
  }
  const auto swiglu_forward = [](auto type) -> Kernel {
    using T = decltype(type);
    return [](Arena& a, const Threads& t) {
      kernels::SwiGluForwardCpu(kernels::SwiGluForwardArgs<T>{.count = a.elements,
                                                              .gate = a.Stream<T>(0),
                                                              .up = a.Stream<T>(1),
                                                              .out = a.Stream<T>(2)},
                                t);
    };
  };
  const auto swiglu_backward = [](auto type) -> Kernel {
    using T = decltype(type);
    return [](Arena& a, const Threads& t) {
      kernels::SwiGluBackwardCpu(kernels::SwiGluBackwardArgs<T>{.count = a.elements,
                                                                .gate = a.Stream<T>(0),
                                                                .up = a.Stream<T>(1),
                                                                .dout = a.Stream<T>(2),
                                                                .dgate = a.Stream<T>(3),
                                                                .dup = a.Stream<T>(4)},
                                 t);
    };
  };
  both("swiglu_forward", 2, 1, swiglu_forward(F{}), swiglu_forward(B{}));
  both("swiglu_backward", 3, 2, swiglu_backward(F{}), swiglu_backward(B{}));
  return cases;
}

// Between the cases every stream holds small normal values again, read as fp32 or as bf16: no
// denormal, no overflow.
void Refill(Arena& arena, const Threads& threads) {
  for (int stream = 0; stream < kStreamsMax; ++stream) {
    kernels::FillCpu(arena.elements, std::bit_cast<float>(0x3c243c24U),
                     {arena.Stream<float>(stream), DType::kFloat32}, threads);
  }
  std::fill(arena.rstd.begin(), arena.rstd.end(), 1.0F);
}

template <class Function>
double Seconds(Function function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Result {
  const Case* bench_case;
  int threads;
  bool probe_non_temporal = false;
  std::vector<double> kernel_gb_s = {}, probe_gb_s = {}, fraction = {};
  int discarded = 0;
};

volatile float g_sink;  // Keeps the probe's reads.

double ProbeSeconds(const Result& result, const Arena& arena, bool non_temporal) {
  const ProbeStreams streams{arena.base, arena.stride};
  return Seconds([&] {
    Threads{result.threads}(arena.elements, 16, [&](int64_t begin, int64_t end) {
      g_sink = Probe(result.bench_case->mix, streams, non_temporal, begin, end);
    });
  });
}

// Chooses the faster stores for the probe, and warms both up.
void Prepare(Result& result, Arena& arena) {
  double plain = 1e9;
  double non_temporal = 1e9;
  for (int i = 0; i < 3; ++i) {
    plain = std::min(plain, ProbeSeconds(result, arena, false));
    non_temporal = std::min(non_temporal, ProbeSeconds(result, arena, true));
  }
  result.probe_non_temporal = non_temporal < plain;
  Refill(arena, {result.threads});
  result.bench_case->run(arena, {result.threads});
}

void Round(Result& result, Arena& arena) {
  const double giga_bytes = static_cast<double>(result.bench_case->mix.BytesPerElement()) *
                            static_cast<double>(arena.elements) * 1e-9;
  const double before = ProbeSeconds(result, arena, result.probe_non_temporal);
  Refill(arena, {result.threads});
  const double kernel = Seconds([&] { result.bench_case->run(arena, {result.threads}); });
  const double after = ProbeSeconds(result, arena, result.probe_non_temporal);
  if (std::abs(before - after) > kProbeDriftMax * std::min(before, after)) {
    ++result.discarded;
    return;
  }
  const double probe = (before + after) / 2;
  result.kernel_gb_s.push_back(giga_bytes / kernel);
  result.probe_gb_s.push_back(giga_bytes / probe);
  result.fraction.push_back(probe / kernel);
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "unknown";
}

double LoadAverage() {
  double load = -1;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

struct Options {
  std::string json;
  std::string filter;
  int64_t elements = int64_t{16} << 20;
  int rounds = 9;
};

std::vector<Result> Measure(const Options& options, const std::vector<Case>& cases) {
  Arena arena(options.elements);
  std::vector<Result> results;
  for (const int threads : {1, 2}) {
    for (const Case& bench_case : cases) {
      if (bench_case.name.find(options.filter) != std::string::npos) {
        results.push_back({.bench_case = &bench_case, .threads = threads});
      }
    }
  }
  for (Result& result : results) {
    Prepare(result, arena);
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < results.size(); ++i) {
      Round(results[round % 2 == 0 ? i : results.size() - 1 - i], arena);
    }
  }
  return results;
}

// Prints the table and the goals; gives both as JSON.
Json Report(const Options& options, const std::vector<Result>& results) {
  Json json = {{"bench", "kernels"},
               {"commit", kCommit},
               {"cpu", CpuName()},
               {"cores", std::thread::hardware_concurrency()},
               {"variant", std::string(kernels::ActiveVariant())},
               {"elements", options.elements},
               {"hidden", kHidden},
               {"rounds", options.rounds},
               {"load_average", LoadAverage()},
               {"results", Json::array()},
               {"goals", Json::array()}};
  absl::PrintF("%s, variant %s, %d elements, %d rounds, load average %.1f\n",
               json["cpu"].get<std::string>(), json["variant"].get<std::string>(), options.elements,
               options.rounds, LoadAverage());
  absl::PrintF("%-26s %7s %9s %9s %6s %9s\n", "kernel", "threads", "GB/s", "probe", "%", "kept");
  for (const Result& result : results) {
    const double fraction = Median(result.fraction);
    absl::PrintF("%-26s %7d %9.2f %9.2f %6.1f %4d of %d\n", result.bench_case->name, result.threads,
                 Median(result.kernel_gb_s), Median(result.probe_gb_s), 100 * fraction,
                 result.fraction.size(), options.rounds);
    json["results"].push_back({{"name", result.bench_case->name},
                               {"threads", result.threads},
                               {"gb_per_s", Median(result.kernel_gb_s)},
                               {"probe_gb_per_s", Median(result.probe_gb_s)},
                               {"probe_non_temporal", result.probe_non_temporal},
                               {"probe_fraction", fraction},
                               {"rounds_kept", result.fraction.size()},
                               {"rounds_discarded", result.discarded}});
  }
  if (std::any_of(results.begin(), results.end(),
                  [](const Result& result) { return result.fraction.empty(); })) {
    absl::PrintF(
        "note: 0 rounds kept means that the machine was too busy to measure that kernel\n");
  }
  for (const Result& result : results) {
    if (result.threads != 2) {
      continue;
    }
    const double fraction = Median(result.fraction);
    const bool ok = fraction >= kGoalFraction;
    const std::string name = "kernels." + result.bench_case->name + ".probe_fraction";
    absl::PrintF("goal %s measured %.3f target >= %.2f %s\n", name, fraction, kGoalFraction,
                 ok ? "ok" : "short");
    json["goals"].push_back({{"name", name},
                             {"measured", fraction},
                             {"target", absl::StrFormat(">= %.2f", kGoalFraction)},
                             {"ok", ok}});
  }
  return json;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("CPU kernels beside a probe with the same mix of read and write streams.");
  app.add_option("--json", options.json, "Write the results to this file");
  app.add_option("--filter", options.filter, "Only kernels whose name contains this");
  app.add_option("--elements", options.elements, "Elements of each stream, a multiple of 65536")
      ->check(CLI::Range(int64_t{65536}, int64_t{1} << 32));
  app.add_option("--rounds", options.rounds, "Rounds of each kernel")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  options.elements = options.elements / 65536 * 65536;
  if (CpuSimdLevel() == SimdLevel::kScalar) {
    std::cerr << "bench_kernels needs a CPU with AVX2 (and no DTRAIN_SIMD=scalar): the scalar "
                 "variant is an oracle, not a fast path\n";
    return kExitUsage;
  }
  const std::vector<Case> cases = Cases();
  const std::vector<Result> results = Measure(options, cases);
  if (results.empty()) {
    std::cerr << "--filter \"" << options.filter << "\" matches no kernel; the first is "
              << cases.front().name << "\n";
    return kExitUsage;
  }
  const Json json = Report(options, results);
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

int main(int argc, char** argv) { return dtrain::bench::Main(argc, argv); }
