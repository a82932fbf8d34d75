// One rank of an all-reduce between two hosts, or between network namespaces that stand for them.
//
//   bench_comm_link --rank R --address 10.0.0.1 --store 10.0.0.1:7000 --plan 65536:50,1048576:20
// Rank 0 serves the store and prints a JSON line a size: {"bytes", "p50_us"}, the median over the
// rounds of the slower rank's time from a common barrier. With --stream it prints instead what one
// plain TCP connection carries on the same link, {"stream_mb_s"}, from its first to its last byte.
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/net/socket.h"
#include "comm/net/store_client.h"
#include "comm/net/store_server.h"

namespace dtrain::comm {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct LinkPlan {
  int rank = 0;
  int size = 2;
  std::string address;
  std::string store;
  std::string plan;
  size_t stream_bytes = 0;
  Algorithm algorithm = Algorithm::kAutomatic;
  int connections = GroupOptions().tcp_connections;
};

struct Size {
  size_t bytes = 0;
  int rounds = 0;
};

absl::StatusOr<std::vector<Size>> ParsePlan(const std::string& text) {
  std::vector<Size> sizes;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(item, ':');
    Size& size = sizes.emplace_back();
    if (!absl::SimpleAtoi(pair.first, &size.bytes) ||
        !absl::SimpleAtoi(pair.second, &size.rounds) || size.bytes % 4 != 0 || size.rounds < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("\"%s\" is not BYTES:ROUNDS with a multiple of 4 bytes", item));
    }
  }
  return sizes;
}

absl::Status AllReduce(Group& group, Buffer buffer, ReduceOp op) {
  DT_ASSIGN_OR_RETURN(const Work work,
                      group.AllReduce(buffer, op, {.name = "bench", .caller_waits = true}));
  return work.Wait();
}

absl::StatusOr<double> MedianMicros(Group& group, const Size& size) {
  std::vector<float> values(size.bytes / 4, static_cast<float>(group.rank() + 1));
  const Buffer buffer{values.data(), size.bytes};
  DT_RETURN_IF_ERROR(AllReduce(group, buffer, ReduceOp::kSum));
  const int want = group.size() * (group.size() + 1) / 2;
  for (const float value : values) {
    if (value != static_cast<float>(want)) {
      return absl::InternalError(absl::StrFormat("a sum is %g, want %d", value, want));
    }
  }
  std::fill(values.begin(), values.end(), 0.0F);  // Sums must not overflow over the rounds.
  std::vector<double> micros;
  for (int round = 0; round < size.rounds + 3; ++round) {  // Three to warm up.
    DT_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
    const int64_t start = Clock::Real().MonotonicNanos();
    DT_RETURN_IF_ERROR(AllReduce(group, buffer, ReduceOp::kSum));
    if (round >= 3) {
      micros.push_back(static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-3);
    }
  }
  DT_RETURN_IF_ERROR(
      AllReduce(group, {micros.data(), micros.size() * 8, DType::kFloat64}, ReduceOp::kMax));
  std::sort(micros.begin(), micros.end());
  return micros[micros.size() / 2];
}

// The rate of a plain connection from rank 1 to rank 0's listener at `where`, as rank 0 sees it.
absl::StatusOr<double> StreamMBs(const LinkPlan& plan, const Endpoint& where) {
  const Deadline deadline = Deadline::After(absl::Minutes(2));
  std::vector<std::byte> buffer(kMiB);
  if (plan.rank != 0) {
    DT_ASSIGN_OR_RETURN(const UniqueFd fd, Connect(where, deadline, {}));
    for (size_t sent = 0; sent < plan.stream_bytes; sent += buffer.size()) {
      DT_RETURN_IF_ERROR(WriteAll(fd.get(), buffer, deadline));
    }
    DT_RETURN_IF_ERROR(ReadExactly(fd.get(), absl::MakeSpan(buffer).first(1), deadline));
    return 0;
  }
  DT_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(where, {}));
  DT_RETURN_IF_ERROR(WaitReadable(listener.get(), deadline));
  const UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  // The first part warms up the connection's window.
  const size_t warm = plan.stream_bytes / 4 / kMiB * kMiB;
  int64_t start = 0;
  for (size_t received = 0; received < plan.stream_bytes; received += buffer.size()) {
    start = received == warm ? Clock::Real().MonotonicNanos() : start;
    DT_RETURN_IF_ERROR(ReadExactly(fd.get(), absl::MakeSpan(buffer), deadline));
  }
  const auto micros = static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-3;
  DT_RETURN_IF_ERROR(WriteAll(fd.get(), absl::MakeConstSpan(buffer).first(1), deadline));
  return static_cast<double>(plan.stream_bytes - warm) / micros;
}

absl::Status RunRank(const LinkPlan& plan) {
  DT_ASSIGN_OR_RETURN(const Endpoint where, ParseEndpoint(plan.store));
  if (plan.stream_bytes > 0) {
    DT_ASSIGN_OR_RETURN(const double rate, StreamMBs(plan, where));
    if (plan.rank == 0) {
      std::printf("{\"stream_mb_s\": %.2f}\n", rate);
    }
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const std::vector<Size> sizes, ParsePlan(plan.plan));
  // Both ranks are this benchmark's own, on a link of their own.
  DT_ASSIGN_OR_RETURN(const JobKey key, JobKey::FromBytes(std::vector<uint8_t>(32, 0x5a)));
  std::unique_ptr<StoreServer> server;
  if (plan.rank == 0) {
    DT_ASSIGN_OR_RETURN(server, StoreServer::Create(where.host, where.port, key, 0));
  }
  const Hello hello{.role = Hello::Role::kRank, .id = plan.rank, .name = "rank"};
  DT_ASSIGN_OR_RETURN(auto store,
                      StoreClient::Connect(where, key, hello, Deadline::After(absl::Minutes(1))));
  GroupOptions options;
  options.rank = plan.rank;
  options.size = plan.size;
  options.node_id = absl::StrFormat("host%d", plan.rank);
  options.host_address = plan.address;
  options.job_key.assign(32, 0x5a);
  options.network = Network::kTcp;
  options.algorithm = plan.algorithm;
  options.tcp_connections = plan.connections;
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(store.get(), options));
  for (const Size& size : sizes) {
    DT_ASSIGN_OR_RETURN(const double micros, MedianMicros(*group, size));
    if (plan.rank == 0) {
      std::printf("{\"bytes\": %zu, \"p50_us\": %.2f}\n", size.bytes, micros);
      std::fflush(stdout);
    }
  }
  return group->Barrier(Deadline::Infinite());
}

}  // namespace
}  // namespace dtrain::comm

int main(int argc, char** argv) {
  CLI::App app("One rank of an all-reduce over TCP between two hosts");
  dtrain::comm::LinkPlan plan;
  int core = -1;
  app.add_option("--rank", plan.rank)->required();
  app.add_option("--size", plan.size)->capture_default_str();
  app.add_option("--address", plan.address)->required();
  app.add_option("--store", plan.store, "Where rank 0 serves")->required();
  app.add_option("--plan", plan.plan, "BYTES:ROUNDS,...");
  app.add_option("--stream", plan.stream_bytes, "Measure a plain stream of so many bytes instead");
  app.add_option("--core", core, "Run on this core alone");
  app.add_option("--connections", plan.connections)->capture_default_str();
  app.add_option("--algorithm", plan.algorithm)
      ->transform(CLI::CheckedTransformer(std::map<std::string, dtrain::comm::Algorithm>{
          {"automatic", dtrain::comm::Algorithm::kAutomatic},
          {"direct", dtrain::comm::Algorithm::kDirect},
          {"ring", dtrain::comm::Algorithm::kRing},
          {"doubling", dtrain::comm::Algorithm::kDoubling},
          {"halving", dtrain::comm::Algorithm::kHalving}}));
  CLI11_PARSE(app, argc, argv);
  if (core >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(core) % std::max(1U, std::thread::hardware_concurrency()), &set);
    sched_setaffinity(0, sizeof(set), &set);  // A wish.
  }
  const absl::Status status = dtrain::comm::RunRank(plan);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
  }
  return dtrain::ExitCodeFor(status);
}
