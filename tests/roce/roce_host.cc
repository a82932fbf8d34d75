// One rank on one host, for tests/roce: two of these in two guests make a group over real RDMA.
//
//   roce_host --rank R --address 10.0.0.1 --store 10.0.0.1:7000 SCENARIO
// Rank 0 serves the store. Prints one line: "RESULT <status code> <message>". Before it, rank 0 of
// the scenario "bandwidth" prints its measurements: "JSON {...}".
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "bench/group_bandwidth.h"
#include "comm/group.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"
#include "tests/comm/group_oracle.h"
#include "tests/comm/rdma_for_tests.h"

namespace dtrain::comm {
namespace {

constexpr int kFateRound = 5;

enum class Scenario { kCollectives, kBandwidth, kKill, kStop, kCut };

struct HostOptions {
  int rank = 0;
  int size = 2;
  std::string address;
  std::string store;
  Scenario scenario = Scenario::kCollectives;
  BandwidthPlan bandwidth;
};

// A fixed key, because both hosts are guests of this test on a private link.
absl::StatusOr<JobKey> TestKey() { return JobKey::FromBytes(std::vector<uint8_t>(32, 0x5a)); }

absl::Status CheckCollectives(Group& group) {
  for (const size_t count : {size_t{1}, size_t{4097}, size_t{1} << 20}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::string values = oracle::Input(dtype, count, group.rank(), 4);
      DT_ASSIGN_OR_RETURN(const Work work, group.AllReduce({values.data(), values.size(), dtype},
                                                           ReduceOp::kAverage));
      DT_RETURN_IF_ERROR(work.Wait());
      DT_RETURN_IF_ERROR(
          oracle::Equal(values, oracle::Reduced(dtype, count, group.size(), 4, ReduceOp::kAverage),
                        dtype, "all_reduce"));
    }
    const auto size = static_cast<size_t>(group.size());
    std::string own(count, static_cast<char>('a' + group.rank()));
    std::string all(count * size, '-');
    DT_ASSIGN_OR_RETURN(Work work, group.AllGather({own.data(), count, DType::kUInt8},
                                                   {all.data(), all.size(), DType::kUInt8}));
    DT_RETURN_IF_ERROR(work.Wait());
    DT_ASSIGN_OR_RETURN(work, group.Broadcast({own.data(), count, DType::kUInt8}, 1));
    DT_RETURN_IF_ERROR(work.Wait());
    std::string want;
    for (size_t rank = 0; rank < size; ++rank) {
      want += std::string(count, static_cast<char>('a' + rank));
    }
    if (all != want || own != std::string(count, 'b')) {
      return absl::InternalError("all-gather or broadcast moved other bytes");
    }
  }
  return absl::OkStatus();
}

void MeetFate(Scenario scenario) {
  switch (scenario) {
    case Scenario::kKill:
      raise(SIGKILL);
      return;
    case Scenario::kStop:
      raise(SIGSTOP);
      return;
    case Scenario::kCut:
      if (std::system("ip link set eth0 down") != 0) {
        std::printf("cannot cut the cable\n");
      }
      return;
    case Scenario::kCollectives:
    case Scenario::kBandwidth:
      return;
  }
}

absl::Status ReduceUntilAnError(Group& group, Scenario scenario) {
  std::vector<float> values(1 << 18);
  for (int round = 0;; ++round) {
    if (group.rank() == 1 && round == kFateRound) {
      MeetFate(scenario);
    }
    std::fill(values.begin(), values.end(), 1.0F);
    DT_ASSIGN_OR_RETURN(const Work work, group.AllReduce({values.data(), values.size() * 4},
                                                         ReduceOp::kSum, {.name = "bucket 7"}));
    DT_RETURN_IF_ERROR(work.Wait());
    if (values.front() != 2 || values.back() != 2) {
      return absl::InternalError("wrong sum");
    }
  }
}

absl::Status PrintBandwidth(Group& group, const BandwidthPlan& plan) {
  DT_ASSIGN_OR_RETURN(const auto lines, MeasureBandwidth(group, plan));
  if (group.rank() == 0) {
    std::printf("JSON %s\n", BandwidthJson(group, plan, lines).dump().c_str());
  }
  return absl::OkStatus();
}

absl::Status RunRank(const HostOptions& host) {
  DT_ASSIGN_OR_RETURN(const JobKey key, TestKey());
  DT_ASSIGN_OR_RETURN(const Endpoint where, ParseEndpoint(host.store));
  std::unique_ptr<StoreServer> server;
  if (host.rank == 0) {
    DT_ASSIGN_OR_RETURN(server, StoreServer::Create(where.host, where.port, key, 0));
  }
  const Hello hello{.role = Hello::Role::kRank, .id = host.rank, .name = "rank"};
  DT_ASSIGN_OR_RETURN(auto store,
                      StoreClient::Connect(where, key, hello, Deadline::After(absl::Minutes(1))));
  GroupOptions options;
  options.rank = host.rank;
  options.size = host.size;
  options.node_id = absl::StrCat("host", host.rank);
  options.host_address = host.address;
  options.job_key.assign(32, 0x5a);
  options.network = Network::kRdma;
  // In the scenario kCut the device must give up first, which takes 8 x 1.1 s.
  if (host.scenario != Scenario::kCut) {
    options.rdma.timeout = kGuestTimeout;
  }
  // Only this timeout notices a stopped rank; all other faults must be noticed faster, even if both
  // guests are emulated and wait for a core.
  options.timeout = host.scenario == Scenario::kStop ? absl::Seconds(15) : absl::Seconds(40);
  options.connect_timeout = absl::Minutes(1);
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(store.get(), options));
  if (group->transport() != "rdma") {
    return absl::InternalError(group->transport());
  }
  if (host.scenario == Scenario::kCollectives) {
    DT_RETURN_IF_ERROR(CheckCollectives(*group));
    return group->Barrier(Deadline::Infinite());
  }
  if (host.scenario == Scenario::kBandwidth) {
    return PrintBandwidth(*group, host.bandwidth);
  }
  return ReduceUntilAnError(*group, host.scenario);
}

int RunAndPrint(const HostOptions& host) {
  const absl::Time start = absl::Now();
  const absl::Status status = RunRank(host);
  std::printf("RESULT %s %s (after %s)\n", absl::StatusCodeToString(status.code()).c_str(),
              std::string(status.message()).c_str(),
              absl::FormatDuration(absl::Now() - start).c_str());
  std::fflush(stdout);
  return 0;
}

// Whether the store can be reached; rank 0 ends it when it has its result.
bool StoreIsServed(const std::string& store) {
  const auto where = ParseEndpoint(store);
  return where.ok() && Connect(*where, Deadline::After(absl::Seconds(5)), {}).ok();
}

// Runs the rank as a child, so that a stopped one can be ended when rank 0 has noticed.
int RunAsChild(const HostOptions& host) {
  const pid_t child = fork();
  if (child == 0) {
    return RunAndPrint(host);
  }
  int status = 0;
  bool stopped = false;
  while (waitpid(child, &status, WUNTRACED | (stopped ? WNOHANG : 0)) != child ||
         WIFSTOPPED(status)) {
    stopped = true;
    if (!StoreIsServed(host.store)) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    absl::SleepFor(absl::Milliseconds(200));
  }
  if (WIFSIGNALED(status)) {
    std::printf("RESULT SIGNAL %d\n", WTERMSIG(status));
  }
  return 0;
}

}  // namespace
}  // namespace dtrain::comm

int main(int argc, char** argv) {
  using dtrain::comm::Scenario;
  CLI::App app("One rank of a group over RDMA");
  dtrain::comm::HostOptions host;
  app.add_option("--rank", host.rank)->required();
  app.add_option("--address", host.address)->required();
  app.add_option("--store", host.store)->required();
  app.add_option("--sizes", host.bandwidth.sizes, "Of bandwidth: bytes, multiples of 4")
      ->delimiter(',');
  app.add_option("--rounds", host.bandwidth.rounds, "Of bandwidth")->capture_default_str();
  app.add_option("scenario", host.scenario)
      ->required()
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Scenario>{{"collectives", Scenario::kCollectives},
                                          {"bandwidth", Scenario::kBandwidth},
                                          {"kill", Scenario::kKill},
                                          {"stop", Scenario::kStop},
                                          {"cut", Scenario::kCut}}));
  CLI11_PARSE(app, argc, argv);
  if (host.scenario == Scenario::kBandwidth && host.bandwidth.sizes.empty()) {
    std::fprintf(stderr, "bandwidth needs --sizes, such as 1048576,4194304\n");
    return 64;
  }
  return host.rank == 1 ? dtrain::comm::RunAsChild(host) : dtrain::comm::RunAndPrint(host);
}
