// RDMA between two ranks of this host: messages one way, and all-reduce of fp32.
//
// A table by size with MB/s, the median of `--rounds` of `--in-flight` calls, as ib_write_bw keeps
// messages in flight. Given what ib_write_bw reached on the same
// device (--limit-mb-s), prints each as a share of it; `./dev bench roce` does both in turn. The
// group is that of a job, on a buffer that is registered with it, as the engine's are; with
// --staged long messages are copied through slots as short ones are.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "bench/group_bandwidth.h"
#include "comm/group.h"
#include "tests/testing/cluster.h"

namespace dtrain {
namespace {

struct RdmaPlan {
  BandwidthPlan bandwidth;
  double limit_mb_s = 0;
  comm::Network network = comm::Network::kRdma;
  comm::RdmaOptions rdma;
  bool staged = false;
  std::string json;
};

absl::Status Print(const comm::Group& group, const std::vector<BandwidthLine>& lines,
                   const RdmaPlan& plan) {
  for (const BandwidthLine& line : lines) {
    std::printf("%-18s %10zu bytes %10.1f MB/s", line.what.c_str(), line.bytes, line.mb_s);
    if (plan.limit_mb_s > 0) {
      std::printf("  %5.1f%% of ib_write_bw", 100 * line.mb_s / plan.limit_mb_s);
    }
    std::printf("\n");
  }
  Json json = BandwidthJson(group, plan.bandwidth, lines);
  json["staged"] = plan.staged;
  std::printf("JSON %s\n", json.dump().c_str());
  std::fflush(stdout);
  return plan.json.empty() ? absl::OkStatus() : WriteFileAtomic(plan.json, DumpJson(json) + "\n");
}

absl::Status RunRank(const testing::RankContext& context, const RdmaPlan& plan) {
  comm::GroupOptions options = context.group_options();
  options.node_id = absl::StrFormat("node %d", context.rank);
  options.network = plan.network;
  options.rdma = plan.rdma;
  if (plan.staged) {
    options.rdma.direct_bytes_min = std::numeric_limits<int64_t>::max();
  }
  DT_ASSIGN_OR_RETURN(auto group, comm::CreateHostGroup(context.store, options));
  DT_ASSIGN_OR_RETURN(const auto lines, MeasureBandwidth(*group, plan.bandwidth));
  return context.rank == 0 ? Print(*group, lines, plan) : absl::OkStatus();
}

absl::Status Main(const RdmaPlan& plan) {
  const auto results =
      testing::RunRanks({.size = 2, .time_bound = absl::Minutes(5)},
                        [&](testing::RankContext& context) { return RunRank(context, plan); });
  for (const testing::RankResult& result : results) {
    DT_RETURN_IF_ERROR(result.status);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace dtrain

int main(int argc, char** argv) {
  CLI::App app("RDMA between two ranks of this host");
  dtrain::RdmaPlan plan;
  bool tcp = false;
  app.add_option("--json", plan.json, "Write the measurements to this file");
  app.add_option("--sizes", plan.bandwidth.sizes, "Bytes, multiples of 4")->delimiter(',');
  app.add_option("--rounds", plan.bandwidth.rounds)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--in-flight", plan.bandwidth.in_flight,
                 "Calls queued at once; 1: each waits for the one before it")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--limit-mb-s", plan.limit_mb_s, "What ib_write_bw reached, in MB/s (10^6)");
  app.add_option("--queue-pairs", plan.rdma.queue_pairs)->capture_default_str();
  app.add_option("--slots", plan.rdma.slots)->capture_default_str();
  app.add_option("--slot-bytes", plan.rdma.slot_bytes)->capture_default_str();
  app.add_option("--timeout", plan.rdma.timeout, "4.096 us x 2^N until a packet counts as lost")
      ->capture_default_str();
  app.add_flag("--tcp", tcp, "Over TCP, to compare");
  app.add_flag("--staged", plan.staged, "Copy long messages too, to compare");
  app.add_flag("!--unregistered", plan.bandwidth.registered,
               "A buffer that the group was not told of");
  CLI11_PARSE(app, argc, argv);
  plan.network = tcp ? dtrain::comm::Network::kTcp : dtrain::comm::Network::kRdma;
  if (plan.bandwidth.sizes.empty()) {
    plan.bandwidth.sizes = {65536, 1 << 20, 4 << 20, 16 << 20};
  }
  const absl::Status status = dtrain::Main(plan);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  return dtrain::ExitCodeFor(status);
}
