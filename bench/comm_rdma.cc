// RDMA between two ranks of this host: messages one way, and all-reduce of fp32.
//
// A table by size with MB/s, the median of `--rounds`. busbw of two ranks is bytes / time. Given
// what ib_write_bw reached on the same device (--limit-mb-s), prints each as a share of it. The
// group is that of a job, on a buffer that is registered with it, as the engine's are; with
// --staged long messages are copied through slots as short ones are. Every message is compared with
// what was sent.
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "base/version.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "tests/testing/cluster.h"

namespace dtrain {
namespace {

struct Plan {
  std::vector<size_t> sizes;
  int rounds = 15;
  double limit_mb_s = 0;
  comm::Network network = comm::Network::kRdma;
  comm::RdmaOptions rdma;
  bool registered = true;
  bool staged = false;
  std::string json;
};

struct Line {
  std::string what;
  size_t bytes = 0;
  double mb_s = 0;
};

template <typename Move>
absl::StatusOr<double> MedianMicros(comm::Group& group, int rounds, Move move) {
  std::vector<double> micros;
  for (int round = 0; round < rounds + 2; ++round) {  // Two to warm up.
    DT_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
    const int64_t start = Clock::Real().MonotonicNanos();
    DT_RETURN_IF_ERROR(move());
    if (round >= 2) {
      micros.push_back(static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-3);
    }
  }
  std::sort(micros.begin(), micros.end());
  return micros[micros.size() / 2];
}

// Another number at every place of a prime period; what rank 1 has is 2 more, so that averages are
// exact.
float ValueAt(int rank, size_t i) {
  return static_cast<float>(i % 251 + 2 * static_cast<size_t>(rank));
}

// `more` beyond what rank 0 has, at every place.
absl::Status CheckValues(absl::Span<const float> values, float more, const char* what) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != ValueAt(0, i) + more) {
      return absl::InternalError(absl::StrFormat("%s: element %d is %g, want %g", what, i,
                                                 values[i], ValueAt(0, i) + more));
    }
  }
  return absl::OkStatus();
}

void Fill(absl::Span<float> values, int rank) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ValueAt(rank, i);
  }
}

absl::StatusOr<std::vector<Line>> RunRank(const testing::RankContext& context, const Plan& plan) {
  comm::GroupOptions options = context.group_options();
  options.node_id = absl::StrFormat("node %d", context.rank);
  options.network = plan.network;
  options.rdma = plan.rdma;
  if (plan.staged) {
    options.rdma.direct_bytes_min = std::numeric_limits<int64_t>::max();
  }
  DT_ASSIGN_OR_RETURN(auto group, comm::CreateHostGroup(context.store, options));
  DT_ASSIGN_OR_RETURN(const auto memory,
                      comm::SymmetricBuffer::Create(
                          *std::max_element(plan.sizes.begin(), plan.sizes.end()), "bench"));
  std::unique_ptr<comm::Registration> registration;
  if (plan.registered) {
    DT_ASSIGN_OR_RETURN(registration, group->Register(memory));
  }
  std::vector<Line> lines;
  for (const size_t bytes : plan.sizes) {
    const auto values = absl::MakeSpan(static_cast<float*>(memory->data()), bytes / 4);
    Fill(values, context.rank);
    const comm::Buffer buffer{values.data(), bytes};
    DT_ASSIGN_OR_RETURN(
        const double one_way, MedianMicros(*group, plan.rounds, [&]() -> absl::Status {
          const comm::CollectiveOptions call{.caller_waits = true};
          DT_ASSIGN_OR_RETURN(const comm::Work work, context.rank == 0
                                                         ? group->Send(buffer, 1, call)
                                                         : group->Receive(buffer, 0, call));
          return work.Wait();
        }));
    DT_RETURN_IF_ERROR(CheckValues(values, 0, "received other bytes than were sent"));
    Fill(values, context.rank);
    DT_ASSIGN_OR_RETURN(
        const double reduced, MedianMicros(*group, plan.rounds, [&]() -> absl::Status {
          DT_ASSIGN_OR_RETURN(const comm::Work work,
                              group->AllReduce(buffer, comm::ReduceOp::kAverage,
                                               {.name = "bench", .caller_waits = true}));
          return work.Wait();
        }));
    DT_RETURN_IF_ERROR(CheckValues(values, 1, "wrong average"));
    lines.push_back({"send_receive", bytes, static_cast<double>(bytes) / one_way});
    lines.push_back({"all_reduce_busbw", bytes, static_cast<double>(bytes) / reduced});
  }
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  return lines;
}

absl::Status Print(const std::vector<Line>& lines, const Plan& plan) {
  utsname system{};
  uname(&system);
  Json json = {{"bench", "comm_rdma"},
               {"commit", kCommit},
               {"kernel", system.release},
               {"registered", plan.registered},
               {"staged", plan.staged},
               {"transport", plan.network == comm::Network::kTcp ? "tcp" : "rdma"},
               {"ib_write_bw_mb_s", plan.limit_mb_s},
               {"lines", Json::array()}};
  for (const Line& line : lines) {
    const double share = plan.limit_mb_s > 0 ? line.mb_s / plan.limit_mb_s : 0;
    std::printf("%-18s %10zu bytes %10.1f MB/s  %5.1f%% of ib_write_bw\n", line.what.c_str(),
                line.bytes, line.mb_s, 100 * share);
    json["lines"].push_back({{"what", line.what}, {"bytes", line.bytes}, {"mb_s", line.mb_s}});
    if (line.bytes >= 1 << 20 && plan.limit_mb_s > 0) {
      const double target = line.what == "send_receive" ? 0.9 : 0.6;
      std::printf("goal rdma_%s_%zu measured %.3g target >= %.3g %s\n", line.what.c_str(),
                  line.bytes, share, target, share >= target ? "ok" : "short");
    }
  }
  std::printf("JSON %s\n", json.dump().c_str());
  std::fflush(stdout);
  return plan.json.empty() ? absl::OkStatus() : WriteFileAtomic(plan.json, DumpJson(json) + "\n");
}

absl::Status Main(const Plan& plan) {
  const auto results = testing::RunRanks(
      {.size = 2, .time_bound = absl::Minutes(5)},
      [&](testing::RankContext& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const std::vector<Line> lines, RunRank(context, plan));
        return context.rank == 0 ? Print(lines, plan) : absl::OkStatus();
      });
  for (const testing::RankResult& result : results) {
    DT_RETURN_IF_ERROR(result.status);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace dtrain

int main(int argc, char** argv) {
  CLI::App app("RDMA between two ranks of this host");
  dtrain::Plan plan;
  bool tcp = false;
  app.add_option("--json", plan.json, "Write the measurements to this file");
  app.add_option("--sizes", plan.sizes, "Bytes, multiples of 4")->delimiter(',');
  app.add_option("--rounds", plan.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--limit-mb-s", plan.limit_mb_s, "What ib_write_bw reached, in MB/s (10^6)");
  app.add_option("--queue-pairs", plan.rdma.queue_pairs)->capture_default_str();
  app.add_option("--slots", plan.rdma.slots)->capture_default_str();
  app.add_option("--slot-bytes", plan.rdma.slot_bytes)->capture_default_str();
  app.add_option("--timeout", plan.rdma.timeout, "4.096 us x 2^N until a packet counts as lost")
      ->capture_default_str();
  app.add_flag("--tcp", tcp, "Over TCP, to compare");
  app.add_flag("--staged", plan.staged, "Copy long messages too, to compare");
  app.add_flag("!--unregistered", plan.registered, "A buffer that the group was not told of");
  CLI11_PARSE(app, argc, argv);
  plan.network = tcp ? dtrain::comm::Network::kTcp : dtrain::comm::Network::kRdma;
  if (plan.sizes.empty()) {
    plan.sizes = {65536, 1 << 20, 4 << 20, 16 << 20};
  }
  const absl::Status status = dtrain::Main(plan);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  return dtrain::ExitCodeFor(status);
}
