// dtrain-bench-comm: every collective between ranks of this host, in nccl-tests' columns.
//
// Time is the median over the iterations of the slowest rank's time of one call from a common
// barrier; algbw = size / time, busbw = algbw x the factor of nccl-tests' doc/PERFORMANCE.md. The
// last column is busbw as a share of what was measured in the same run: over shared memory the rate
// at which all ranks at once copy memory, over TCP the rate of one send between two ranks.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/version.h"
#include "comm/tools/bench_cases.h"
#include "comm/tools/local_ranks.h"

namespace dtrain::comm {
namespace {

struct BenchPlan {
  int ranks = 2;
  std::vector<std::string> backends = {"shm", "tcp"};
  std::vector<std::string> collectives;
  size_t min_bytes = 8;
  size_t max_bytes = size_t{64} << 20;
  size_t factor = 4;
  int iterations = 20;
  std::string json;
};

struct BenchRow {
  std::string backend;
  BenchKind kind = BenchKind::kAllReduce;
  size_t bytes = 0;
  size_t count = 0;
  double micros = 0;
  size_t wrong = 0;
  double algbw = 0;  // GB/s.
  double busbw = 0;
  double of_limit = 0;
};

// The largest over ranks, so that all continue with the same number.
absl::StatusOr<double> Slowest(Group& group, double value) {
  DT_ASSIGN_OR_RETURN(const Work work, group.AllReduce({&value, sizeof(value), DType::kFloat64},
                                                       ReduceOp::kMax, {.caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  return value;
}

// Median microseconds of `work`.
template <typename Function>
absl::StatusOr<double> Measure(Group& group, int iterations, Function work) {
  std::vector<double> micros;
  for (int i = 0; i < iterations + 2; ++i) {  // Two to warm up.
    DT_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
    const int64_t start = Clock::Real().MonotonicNanos();
    DT_RETURN_IF_ERROR(work());
    const auto own = static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-3;
    DT_ASSIGN_OR_RETURN(const double slowest, Slowest(group, own));
    if (i >= 2) {
      micros.push_back(slowest);
    }
  }
  std::sort(micros.begin(), micros.end());
  return micros[micros.size() / 2];
}

// GB/s that no collective of this backend can beat: see the top.
absl::StatusOr<double> Limit(Group& group, const BenchPlan& plan, bool shared_memory) {
  const size_t bytes = std::max<size_t>(plan.max_bytes, size_t{4} << 20);
  if (!shared_memory) {
    BenchCase link(BenchKind::kSendReceive, group, bytes);
    link.Fill();
    DT_ASSIGN_OR_RETURN(const double micros,
                        Measure(group, plan.iterations, [&] { return link.Run(); }));
    return static_cast<double>(link.bytes()) / micros * 1e-3;
  }
  const std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes);
  DT_ASSIGN_OR_RETURN(const double micros, Measure(group, plan.iterations, [&] {
                        std::memcpy(to.data(), from.data(), bytes);
                        return absl::OkStatus();
                      }));
  return static_cast<double>(bytes) / micros * 1e-3;
}

absl::StatusOr<BenchRow> MeasureCase(Group& group, const BenchPlan& plan, BenchKind kind,
                                     size_t bytes, double limit) {
  BenchCase bench(kind, group, bytes);
  bench.Fill();
  DT_RETURN_IF_ERROR(bench.Run());
  BenchRow row{.kind = kind, .bytes = bench.bytes(), .count = bench.count()};
  DT_ASSIGN_OR_RETURN(const double wrong, Slowest(group, static_cast<double>(bench.Wrong())));
  row.wrong = static_cast<size_t>(wrong);
  DT_ASSIGN_OR_RETURN(row.micros, Measure(group, plan.iterations, [&] { return bench.Run(); }));
  row.algbw = static_cast<double>(row.bytes) / row.micros * 1e-3;
  row.busbw = row.algbw * BusFactor(kind, group.size());
  row.of_limit = row.busbw / limit;
  return row;
}

// Where the table goes: standard output belongs to the JSON where it was asked for there.
std::FILE* TableFile(const BenchPlan& plan) { return plan.json == "-" ? stderr : stdout; }

void Print(const BenchRow& row, std::FILE* out) {
  const bool reduces = row.kind == BenchKind::kAllReduce || row.kind == BenchKind::kReduceScatter;
  const bool has_root = row.kind == BenchKind::kBroadcast;
  std::fprintf(out, "%12zu %12zu %8s %6s %5d %10.2f %8.3f %8.3f %7zu %7.0f%%\n", row.bytes,
               row.count, "float", reduces ? "sum" : "none", has_root ? 0 : -1, row.micros,
               row.algbw, row.busbw, row.wrong, 100 * row.of_limit);
  std::fflush(out);
}

Json ToJson(const BenchRow& row) {
  return {{"backend", row.backend},  {"collective", BenchName(row.kind)},
          {"size", row.bytes},       {"count", row.count},
          {"type", "float"},         {"time_us", row.micros},
          {"algbw_gb_s", row.algbw}, {"busbw_gb_s", row.busbw},
          {"wrong", row.wrong},      {"of_limit", row.of_limit}};
}

bool Wanted(const BenchPlan& plan, BenchKind kind) {
  return plan.collectives.empty() || std::find(plan.collectives.begin(), plan.collectives.end(),
                                               BenchName(kind)) != plan.collectives.end();
}

absl::Status MeasureBackend(const GroupOptions& base, Store& store, const BenchPlan& plan,
                            const std::string& backend, Json& rows) {
  GroupOptions options = base;
  options.name = backend;
  options.allow_shared_memory = backend == "shm";
  DT_ASSIGN_OR_RETURN(const auto group, CreateHostGroup(&store, options));
  DT_ASSIGN_OR_RETURN(const double limit, Limit(*group, plan, options.allow_shared_memory));
  const bool speaks = group->rank() == 0;
  for (const BenchKind kind : AllBenchKinds()) {
    if (!Wanted(plan, kind)) {
      continue;
    }
    if (speaks) {
      std::fprintf(
          TableFile(plan),
          "\n# %s over %s, %d ranks; limit %.2f GB/s (%s)\n#%11s %12s %8s %6s %5s %10s %8s "
          "%8s %7s %8s\n#%11s %12s %8s %6s %5s %10s %8s %8s %7s %8s\n",
          BenchName(kind), group->transport().c_str(), group->size(), limit,
          options.allow_shared_memory ? "memory copy" : "one link", "size", "count", "type",
          "redop", "root", "time", "algbw", "busbw", "#wrong", "%limit", "(B)", "(elements)", "",
          "", "", "(us)", "(GB/s)", "(GB/s)", "", "");
    }
    for (size_t bytes = plan.min_bytes; bytes <= plan.max_bytes; bytes *= plan.factor) {
      DT_ASSIGN_OR_RETURN(BenchRow row, MeasureCase(*group, plan, kind, bytes, limit));
      row.backend = backend;
      if (speaks) {
        Print(row, TableFile(plan));
        rows.push_back(ToJson(row));
      }
      if (row.wrong != 0) {
        return absl::InternalError(absl::StrFormat("%s of %d bytes over %s: %d elements are wrong",
                                                   BenchName(kind), bytes, backend, row.wrong));
      }
      if (kind == BenchKind::kBarrier) {
        break;  // It has no size.
      }
    }
  }
  return group->Barrier(Deadline::Infinite());
}

absl::Status RunRank(const GroupOptions& options, Store& store, const BenchPlan& plan) {
  Json rows = Json::array();
  for (const std::string& backend : plan.backends) {
    DT_RETURN_IF_ERROR(MeasureBackend(options, store, plan, backend, rows));
  }
  if (options.rank != 0 || plan.json.empty()) {
    return absl::OkStatus();
  }
  const Json report = {
      {"bench", "comm"},     {"version", kVersion},           {"commit", kCommit},
      {"ranks", plan.ranks}, {"iterations", plan.iterations}, {"rows", std::move(rows)}};
  const std::string text = DumpJson(report, 1) + "\n";
  if (plan.json != "-") {
    return WriteFileAtomic(plan.json, text);
  }
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

absl::Status CheckPlan(const BenchPlan& plan) {
  if (plan.min_bytes < 4 || plan.max_bytes < plan.min_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sizes from %d to %d bytes: the smallest is 4 and the largest not below the smallest",
        plan.min_bytes, plan.max_bytes));
  }
  return absl::OkStatus();
}

std::vector<std::string> CollectiveNames() {
  std::vector<std::string> names;
  for (const BenchKind kind : AllBenchKinds()) {
    names.emplace_back(BenchName(kind));
  }
  return names;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures and checks every collective between ranks of this host, in nccl-tests' "
      "columns.",
      "dtrain bench comm");
  BenchPlan plan;
  app.add_option("--ranks,-n", plan.ranks)->check(CLI::Range(2, 64))->capture_default_str();
  app.add_option("--backend", plan.backends, "shm, tcp or both")
      ->delimiter(',')
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->capture_default_str();
  app.add_option("--collective", plan.collectives, "Only these")
      ->delimiter(',')
      ->check(CLI::IsMember(CollectiveNames()));
  app.add_option("--minbytes,-b", plan.min_bytes)
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--maxbytes,-e", plan.max_bytes, "64M and the like are read")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app.add_option("--stepfactor,-f", plan.factor)->check(CLI::Range(2, 1024))->capture_default_str();
  app.add_option("--iters", plan.iterations)->check(CLI::Range(1, 100000))->capture_default_str();
  app.add_option("--json", plan.json,
                 "Write the rows to this file as well; without a name or with -, print them, the "
                 "table then goes to standard error")
      ->expected(0, 1)
      ->default_str("-");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  absl::Status status = CheckPlan(plan);
  if (status.ok()) {
    status = RunLocalRanks(plan.ranks, [&](const GroupOptions& options, Store& store) {
      return RunRank(options, store, plan);
    });
  }
  if (!status.ok()) {
    std::fprintf(stderr, "dtrain bench comm: %s\n", std::string(status.message()).c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace
}  // namespace dtrain::comm

int main(int argc, char** argv) { return dtrain::comm::Main(argc, argv); }
