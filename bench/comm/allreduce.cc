// All-reduce of fp32 between forked ranks on one host, two unless told otherwise, each pinned to a
// core.
//
// A table by size: registered memory (reduced in place), plain memory (through the staging area),
// and a probe from the same run: both ranks' copies of half the buffer read and both written, with
// no call and no wait, which bounds an operation that copies nothing unless it was slower. The time
// of a call is the maximum over the ranks, from a common barrier. busbw = bytes / time x 2 (n - 1)
// / n. The probe is for two ranks of one node; with others there is only
// registered and plain memory.
#include <sched.h>
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/provenance.h"
#include "base/status.h"
#include "bench/comm/probe.h"
#include "bench/goal_line.h"
#include "comm/group.h"
#include "tests/testing/cluster.h"

namespace dtrain {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
// The probe's copies lie at different offsets in a page: equal ones make loads wait for stores that
// only look alike, which would flatter the runtime.
constexpr size_t kSkewFloats = 528;
constexpr double kOfProbe = 0.85;  // The goal; bench/comm.py has the same.

struct Line {
  size_t bytes = 0;
  std::string mode;
  size_t rounds = 0;
  double p50_us = 0;
  double high_us = 0;  // The 99th percentile, or the most where rounds are fewer than 100.
};

void PinTo(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core) % std::max(1U, std::thread::hardware_concurrency()), &set);
  sched_setaffinity(0, sizeof(set), &set);  // A wish.
}

// The median and the high end over rounds of the slower rank's time of `work`.
template <typename Work>
absl::StatusOr<Line> Measure(comm::Group& group, size_t bytes, const std::string& mode, Work work) {
  const size_t rounds = bytes <= kMiB ? 200 : bytes <= 32 * kMiB ? 30 : 11;
  std::vector<double> micros(rounds);
  for (size_t round = 0; round < rounds + 3; ++round) {  // Three to warm up.
    DT_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
    const int64_t start = Clock::Real().MonotonicNanos();
    DT_RETURN_IF_ERROR(work());
    const int64_t end = Clock::Real().MonotonicNanos();
    if (round >= 3) {
      micros[round - 3] = static_cast<double>(end - start) * 1e-3;
    }
  }
  DT_ASSIGN_OR_RETURN(const comm::Work reduced,
                      group.AllReduce({micros.data(), rounds * 8, DType::kFloat64},
                                      comm::ReduceOp::kMax, {.caller_waits = true}));
  DT_RETURN_IF_ERROR(reduced.Wait());
  std::sort(micros.begin(), micros.end());
  return Line{bytes, mode, rounds, micros[rounds / 2], micros[rounds * 99 / 100]};
}

absl::Status CheckSum(const float* values, size_t count, int ranks) {
  const int sum = ranks * (ranks + 1) / 2;
  const auto want = static_cast<float>(sum);
  for (size_t i = 0; i < count; ++i) {
    if (values[i] != want) {
      return absl::InternalError(absl::StrFormat("element %d is %g, want %g", i, values[i], want));
    }
  }
  return absl::OkStatus();
}

struct Plan {
  std::vector<size_t> sizes;
  int ranks = 2;
  int nodes = 1;  // The host pretends to be so many nodes, with TCP between them.
  bool tcp = false;
  comm::Algorithm algorithm = comm::Algorithm::kAutomatic;
  Json provenance = Provenance();  // Read before the ranks load the machine.
  // All modes and their probe, which is memory's.
  bool everything() const { return ranks == 2 && nodes == 1 && !tcp; }
};

double BusGbS(size_t bytes, double micros, int ranks) {
  return static_cast<double>(bytes) / micros * 1e-3 * 2 * (ranks - 1) / ranks;
}

// The work of one rank; rank 0 gives the lines. `probe` holds both ranks' copies for the probe.
absl::StatusOr<std::vector<Line>> RunRank(testing::RankContext& context, const Plan& plan,
                                          comm::SymmetricBuffer& probe) {
  PinTo(context.rank);
  comm::GroupOptions options = context.group_options();
  options.allow_shared_memory = !plan.tcp;
  options.algorithm = plan.algorithm;
  options.node_id = absl::StrFormat("node %d", context.rank * plan.nodes / plan.ranks);
  DT_ASSIGN_OR_RETURN(auto group, comm::CreateHostGroup(context.store, options));
  const size_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  DT_ASSIGN_OR_RETURN(const auto buffer, comm::SymmetricBuffer::Create(largest, "bench"));
  DT_ASSIGN_OR_RETURN(const auto registration, group->Register(buffer));
  auto* const registered = static_cast<float*>(buffer->data());
  std::vector<float> plain(largest / 4);
  std::vector<Line> lines;
  for (const size_t bytes : plan.sizes) {
    const size_t count = bytes / 4;
    const auto all_reduce = [&](float* data, bool caller_waits) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const comm::Work work,
                          group->AllReduce({data, bytes}, comm::ReduceOp::kSum,
                                           {.name = "bench", .caller_waits = caller_waits}));
      return work.Wait();
    };
    for (float* const data : {registered, plain.data()}) {  // The result before any time.
      std::fill(data, data + count, static_cast<float>(context.rank + 1));
      DT_RETURN_IF_ERROR(all_reduce(data, true));
      DT_RETURN_IF_ERROR(CheckSum(data, count, plan.ranks));
      std::fill(data, data + count, 0.0F);  // Sums must not overflow over the rounds.
    }
    if (!plan.everything()) {
      DT_ASSIGN_OR_RETURN(lines.emplace_back(), Measure(*group, bytes, "registered", [&] {
                            return all_reduce(registered, true);
                          }));
      DT_ASSIGN_OR_RETURN(lines.emplace_back(), Measure(*group, bytes, "plain", [&] {
                            return all_reduce(plain.data(), true);
                          }));
      continue;
    }
    float* const left = static_cast<float*>(probe.data());
    float* const right = left + largest / 4 + kSkewFloats;
    const size_t half = count / 2;
    const size_t start = context.rank == 0 ? 0 : half;
    const auto stream = [&] {
      AddIntoBoth(left + start, right + start, half);
      return absl::OkStatus();
    };
    DT_ASSIGN_OR_RETURN(const Line before, Measure(*group, bytes, "probe", stream));
    DT_ASSIGN_OR_RETURN(lines.emplace_back(), Measure(*group, bytes, "registered", [&] {
                          return all_reduce(registered, true);
                        }));
    DT_ASSIGN_OR_RETURN(lines.emplace_back(), Measure(*group, bytes, "plain", [&] {
                          return all_reduce(plain.data(), true);
                        }));
    DT_ASSIGN_OR_RETURN(lines.emplace_back(),
                        Measure(*group, bytes, "registered, comm thread",
                                [&] { return all_reduce(registered, false); }));
    DT_ASSIGN_OR_RETURN(Line after, Measure(*group, bytes, "probe", stream));
    after.p50_us = (after.p50_us + before.p50_us) / 2;
    lines.push_back(after);
  }
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  return lines;
}

Json Report(const std::vector<Line>& lines, const Plan& plan) {
  utsname system{};
  uname(&system);
  Json json = {{"bench", "comm_allreduce"},
               {"kernel", system.release},
               {"ranks", plan.ranks},
               {"nodes", plan.nodes},
               {"transport", plan.tcp         ? "tcp"
                             : plan.nodes > 1 ? "shm+tcp"
                                              : "shm"},
               {"dtype", "fp32"},
               {"lines", Json::array()}};
  json.update(plan.provenance);
  for (const Line& line : lines) {
    json["lines"].push_back({{"bytes", line.bytes},
                             {"mode", line.mode},
                             {"rounds", line.rounds},
                             {"p50_us", line.p50_us},
                             {line.rounds < 100 ? "most_us" : "p99_us", line.high_us},
                             {"busbw_gb_s", BusGbS(line.bytes, line.p50_us, plan.ranks)}});
  }
  return json;
}

double MicrosOf(const std::vector<Line>& lines, size_t bytes, const std::string& mode) {
  for (const Line& line : lines) {
    if (line.bytes == bytes && line.mode == mode) {
      return line.p50_us;
    }
  }
  return 0;
}

void Print(const std::vector<Line>& lines, int ranks) {
  std::printf("%12s  %-24s %12s %12s %12s %9s\n", "bytes", "mode", "p50 us", "high us",
              "busbw GB/s", "of probe");
  for (const Line& line : lines) {
    const double share = MicrosOf(lines, line.bytes, "probe") / line.p50_us;
    std::printf("%12zu  %-24s %12.1f %12.1f %12.3f %8.0f%%%s\n", line.bytes, line.mode.c_str(),
                line.p50_us, line.high_us, BusGbS(line.bytes, line.p50_us, ranks), 100 * share,
                share > 1 ? "  probe slower than the operation: no bound" : "");
  }
  for (const size_t mib : {size_t{25}, size_t{256}}) {
    if (const double us = MicrosOf(lines, mib * kMiB, "registered"); us > 0) {
      bench::JudgeShare(absl::StrFormat("allreduce_%dMiB_of_bound", mib),
                        MicrosOf(lines, mib * kMiB, "probe") / us, kOfProbe);
    }
  }
  if (const double us = MicrosOf(lines, 4096, "registered"); us > 0) {
    bench::JudgeGoal("allreduce_4KiB_us", us, "<=", 3);
  }
  if (const double us = MicrosOf(lines, 65536, "registered"); us > 0) {
    bench::JudgeGoal("allreduce_64KiB_us", us, "<=", 15);
  }
}

absl::Status Main(const Plan& plan, const std::string& json_path) {
  const size_t largest = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  DT_ASSIGN_OR_RETURN(const auto probe, comm::SymmetricBuffer::Create(2 * largest + kMiB, "probe"));
  DT_ASSIGN_OR_RETURN(
      auto cluster,
      testing::Cluster::Start(
          {.size = plan.ranks, .time_bound = absl::Minutes(10)},
          [&](testing::RankContext& context) -> absl::Status {
            DT_ASSIGN_OR_RETURN(const std::vector<Line> lines, RunRank(context, plan, *probe));
            if (context.rank != 0) {
              return absl::OkStatus();
            }
            Print(lines, plan.ranks);
            std::fflush(stdout);
            const Json json = Report(lines, plan);
            return json_path.empty() ? absl::OkStatus()
                                     : WriteFileAtomic(json_path, DumpJson(json) + "\n");
          }));
  for (const testing::RankResult& result : cluster->Join()) {
    DT_RETURN_IF_ERROR(result.status);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace dtrain

int main(int argc, char** argv) {
  CLI::App app("All-reduce between two ranks of this host, beside a probe that streams as much");
  std::string json;
  dtrain::Plan plan;
  app.add_option("--json", json, "Write the measurements to this file");
  app.add_option("--sizes", plan.sizes, "Bytes, multiples of 8")->delimiter(',');
  app.add_option("--ranks", plan.ranks)->check(CLI::Range(2, 64))->capture_default_str();
  app.add_option("--nodes", plan.nodes, "Make as if the ranks sat on so many nodes")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--algorithm", plan.algorithm, "Over TCP: automatic, direct or ring")
      ->transform(CLI::CheckedTransformer(std::map<std::string, dtrain::comm::Algorithm>{
          {"automatic", dtrain::comm::Algorithm::kAutomatic},
          {"direct", dtrain::comm::Algorithm::kDirect},
          {"ring", dtrain::comm::Algorithm::kRing}}));
  app.add_flag("--tcp", plan.tcp, "Over TCP on the loopback interface");
  CLI11_PARSE(app, argc, argv);
  if (plan.sizes.empty()) {
    for (size_t bytes = 4096; bytes <= 256 * dtrain::kMiB; bytes *= 4) {
      plan.sizes.push_back(bytes);
    }
    plan.sizes.push_back(25 * dtrain::kMiB);
    plan.sizes.push_back(256 * dtrain::kMiB);
    std::sort(plan.sizes.begin(), plan.sizes.end());
  }
  const absl::Status status = dtrain::Main(plan, json);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  return dtrain::ExitCodeFor(status);
}
