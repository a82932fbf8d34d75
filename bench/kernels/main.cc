// dtrain-bench-kernels: each CPU kernel beside a probe with the same mix of read and write streams.
//
// A round is probe, kernel, probe; the cases' rounds are interleaved, their order reversed every
// second time, and a round whose two probes differ by more than 10% is discarded. Printed are the
// medians, in GB/s at the bytes that the mix counts, and the median of the rounds' ratios. With
// --serve it measures what standard input names, so that bench/kernels.py can interleave peers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/provenance.h"
#include "base/status.h"
#include "base/system/cpu_features.h"
#include "bench/goal_line.h"
#include "bench/kernels/measure.h"
#include "kernels/simd/variant.h"

namespace dtrain::bench {
namespace {

constexpr double kGoalFraction = 0.90;

struct Options {
  std::string json;
  std::string filter;
  int64_t elements = int64_t{16} << 20;
  int rounds = 9;
  std::vector<int> threads = {1, 2};
  bool list = false;
  bool serve = false;
};

struct Result {
  Measured measured;
  std::vector<double> kernel_gb_s = {}, probe_gb_s = {}, fraction = {};
  int discarded = 0;

  void Add(const RoundTimes& times, double giga_bytes) {
    if (!times.steady()) {
      ++discarded;
      return;
    }
    kernel_gb_s.push_back(giga_bytes / times.kernel_s);
    probe_gb_s.push_back(giga_bytes / times.probe_s());
    fraction.push_back(times.probe_s() / times.kernel_s);
  }
};

double Median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<Result> Measure(const Options& options, const std::vector<Case>& cases) {
  Arena arena(options.elements);
  std::vector<Result> results;
  for (const int threads : options.threads) {
    for (const Case& bench_case : cases) {
      if (bench_case.name.find(options.filter) != std::string::npos) {
        results.push_back({Measured(bench_case, threads, arena)});
      }
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < results.size(); ++i) {
      Result& result = results[round % 2 == 0 ? i : results.size() - 1 - i];
      result.Add(result.measured.Round(arena), result.measured.giga_bytes(arena));
    }
  }
  return results;
}

// To be asked for before anything is measured.
Json Facts(const Options& options) {
  Json facts = {{"bench", "kernels"}};
  facts.update(Provenance());
  facts.update(Json{{"variant", std::string(kernels::ActiveVariant())},
                    {"elements", options.elements},
                    {"hidden", kHidden},
                    {"rounds", options.rounds}});
  return facts;
}

void PrintTable(const Options& options, const Json& facts, const std::vector<Result>& results) {
  absl::PrintF("%s, variant %s, %d elements, %d rounds, load average %.1f before\n",
               facts["cpu"].get<std::string>(), kernels::ActiveVariant(), options.elements,
               options.rounds, facts["load_average"].get<double>());
  absl::PrintF("%-26s %7s %9s %9s %6s %9s\n", "kernel", "threads", "GB/s", "probe", "%", "kept");
  bool all_kept = true;
  for (const Result& result : results) {
    absl::PrintF("%-26s %7d %9.2f %9.2f %6.1f %4d of %d%s\n", result.measured.bench_case().name,
                 result.measured.threads(), Median(result.kernel_gb_s), Median(result.probe_gb_s),
                 100 * Median(result.fraction), result.fraction.size(), options.rounds,
                 Median(result.fraction) > 1 ? "  probe slower than the kernel: no bound" : "");
    all_kept = all_kept && !result.fraction.empty();
  }
  if (!all_kept) {
    absl::PrintF("note: 0 rounds kept means that the machine was too busy to measure that one\n");
  }
}

// Prints the table and the goals; gives both as JSON.
Json Report(const Options& options, Json json, const std::vector<Result>& results) {
  PrintTable(options, json, results);
  json["results"] = Json::array();
  json["goals"] = Json::array();
  const int most_threads = *std::max_element(options.threads.begin(), options.threads.end());
  for (const Result& result : results) {
    const double fraction = Median(result.fraction);
    json["results"].push_back({{"name", result.measured.bench_case().name},
                               {"threads", result.measured.threads()},
                               {"gb_per_s", Median(result.kernel_gb_s)},
                               {"probe_gb_per_s", Median(result.probe_gb_s)},
                               {"probe_non_temporal", result.measured.probe_non_temporal()},
                               {"probe_fraction", fraction},
                               {"rounds_kept", result.fraction.size()},
                               {"rounds_discarded", result.discarded}});
    if (result.measured.threads() != most_threads || result.fraction.empty()) {
      continue;
    }
    json["goals"].push_back(
        JudgeShare("kernels." + result.measured.bench_case().name + ".probe_fraction", fraction,
                   kGoalFraction));
  }
  return json;
}

// The list of cases, for a driver.
Json List(const Options& options, const std::vector<Case>& cases) {
  Json json = Facts(options);
  json["cases"] = Json::array();
  for (const Case& one : cases) {
    json["cases"].push_back({{"name", one.name},
                             {"bytes", one.mix.BytesPerElement() * options.elements},
                             {"shape", one.shape}});
  }
  return json;
}

// Standard input gives NAME THREADS a line; each is one round, answered by one line of JSON.
int Serve(const Options& options, const std::vector<Case>& cases) {
  Arena arena(options.elements);
  std::map<std::pair<std::string, int>, Measured> known;
  std::string name;
  for (int threads = 0; std::cin >> name >> threads;) {
    const auto found =
        std::find_if(cases.begin(), cases.end(), [&](const Case& one) { return one.name == name; });
    if (found == cases.end() || threads < 1) {
      std::cerr << "dtrain bench kernels --serve: no case \"" << name << "\" on " << threads
                << " threads; --list names the cases\n";
      return kExitUsage;
    }
    auto place = known.find({name, threads});
    if (place == known.end()) {
      place = known.emplace(std::pair(name, threads), Measured(*found, threads, arena)).first;
    }
    const RoundTimes times = place->second.Round(arena);
    std::cout << Json{{"probe_before_s", times.probe_before_s},
                      {"kernel_s", times.kernel_s},
                      {"probe_after_s", times.probe_after_s},
                      {"steady", times.steady()}}
                     .dump()
              << std::endl;
  }
  return kExitOk;
}

int MeasureAll(const Options& options, const std::vector<Case>& cases) {
  const Json facts = Facts(options);
  const std::vector<Result> results = Measure(options, cases);
  if (results.empty()) {
    std::cerr << "--filter \"" << options.filter << "\" matches no kernel; the first is "
              << cases.front().name << "\n";
    return kExitUsage;
  }
  const Json json = Report(options, facts, results);
  if (!options.json.empty()) {
    if (const absl::Status status = WriteFileAtomic(options.json, DumpJson(json, 2) + "\n");
        !status.ok()) {
      std::cerr << status << "\n";
      return ExitCodeFor(status);
    }
  }
  return kExitOk;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures each CPU kernel beside a probe that reads and writes as many bytes. A kernel "
      "at 100 % is as fast as the memory. (`./dev bench kernels` in the source tree also "
      "measures PyTorch.)",
      "dtrain bench kernels");
  app.footer(
      "Examples:\n"
      "  dtrain bench kernels --filter adamw\n"
      "  dtrain bench kernels --threads 1 2 4 --json results.json");
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
  app.add_option("--threads", options.threads, "Numbers of threads to measure with, one or more")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_flag("--list", options.list,
               "Print the names of the kernels as JSON and end. Default: off");
  app.add_flag("--serve", options.serve,
               "Measure what standard input names: lines of KERNEL THREADS. Default: off");
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  options.elements = options.elements / 65536 * 65536;
  const std::vector<Case> cases = Cases();
  if (options.list) {
    std::cout << List(options, cases).dump() << "\n";
    return kExitOk;
  }
  if (CpuSimdLevel() == SimdLevel::kScalar) {
    std::cerr << "dtrain bench kernels needs a CPU with AVX2 (and no DTRAIN_SIMD=scalar): the "
                 "scalar variant is an oracle, not a fast path\n";
    return kExitUsage;
  }
  return options.serve ? Serve(options, cases) : MeasureAll(options, cases);
}

}  // namespace
}  // namespace dtrain::bench

int main(int argc, char** argv) { return dtrain::bench::Main(argc, argv); }
