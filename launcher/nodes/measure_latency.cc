#include "launcher/nodes/measure_latency.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/net/data_socket.h"
#include "comm/net/store_client.h"
#include "launcher/machine.h"

namespace dtrain::launcher {
namespace {

constexpr int kWarmUp = 20;
constexpr int kPings = 200;
constexpr absl::Duration kPairTime = absl::Seconds(20);
constexpr absl::Duration kMeasureTime = absl::Minutes(5);
constexpr double kNoLatency = -1;

std::string MeasuredHostKey(int rank) { return absl::StrCat("measure/host/", rank); }
std::string RowKey(int rank) { return absl::StrCat("measure/row/", rank); }

// Half of the median of the round trips, in microseconds, for the rank that begins.
absl::StatusOr<double> Ping(comm::DataSocket& socket, bool begins, Deadline deadline) {
  std::array<std::byte, 8> message{};
  std::vector<int64_t> nanos;
  for (int ping = 0; ping < kWarmUp + kPings; ++ping) {
    const int64_t start = Clock::Real().MonotonicNanos();
    if (begins) {
      DT_RETURN_IF_ERROR(socket.Send(message, deadline));
    }
    DT_RETURN_IF_ERROR(socket.Receive(absl::MakeSpan(message), deadline));
    if (!begins) {
      DT_RETURN_IF_ERROR(socket.Send(message, deadline));
    }
    if (ping >= kWarmUp) {
      nanos.push_back(Clock::Real().MonotonicNanos() - start);
    }
  }
  const auto middle = nanos.begin() + static_cast<std::ptrdiff_t>(nanos.size() / 2);
  std::nth_element(nanos.begin(), middle, nanos.end());
  return static_cast<double>(*middle) * 1e-3 / 2;
}

struct Peer {
  std::string name;
  comm::Endpoint endpoint;
};

// The ranks tell each other where they listen.
absl::StatusOr<std::vector<Peer>> MeetHosts(const MeasuringHost& host, int port, comm::Store& store,
                                            Deadline deadline) {
  DT_RETURN_IF_ERROR(store.Set(
      MeasuredHostKey(host.rank),
      DumpJson(Json{{"name", host.name}, {"address", host.address}, {"port", port}}), deadline));
  std::vector<Peer> peers;
  std::map<std::string, int> ranks;  // By address.
  std::set<std::string> names;
  for (int rank = 0; rank < host.size; ++rank) {
    DT_ASSIGN_OR_RETURN(const std::string text, store.Get(MeasuredHostKey(rank), deadline));
    DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "a host that measures"));
    peers.push_back({json.value("name", ""), {json.value("address", ""), json.value("port", 0)}});
    names.insert(peers.back().name);
    const auto [other, is_new] = ranks.emplace(peers.back().endpoint.host, rank);
    if (!is_new) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "ranks %d and %d are both on host %s, but one a host measures: start them with "
          "--nproc-per-node 1",
          other->second, rank, peers.back().name));
    }
  }
  for (Peer& peer : peers) {  // Hosts may have one name, as containers of one image do.
    peer.name = names.size() < peers.size() ? peer.endpoint.host : peer.name;
  }
  return peers;
}

// The pair's connection; the smaller rank opens it.
absl::StatusOr<std::unique_ptr<comm::DataSocket>> Connection(const MeasuringHost& host, int partner,
                                                             const Peer& peer,
                                                             const comm::JobKey& key,
                                                             comm::DataListener& listener,
                                                             Deadline deadline) {
  return host.rank < partner
             ? comm::DataSocket::Connect(peer.endpoint, key,
                                         {.epoch = host.epoch, .self = host.rank, .peer = partner},
                                         {}, deadline)
             : listener.AcceptFrom(partner, 0, deadline);
}

// Rank 0's part at the end.
absl::StatusOr<Latencies> Gather(const std::vector<Peer>& peers, comm::Store& store,
                                 Deadline deadline) {
  Latencies latencies;
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    DT_ASSIGN_OR_RETURN(const std::string text,
                        store.Get(RowKey(static_cast<int>(rank)), deadline));
    DT_ASSIGN_OR_RETURN(const Json row, ParseJson(text, "the latencies of a host"));
    latencies.hosts.push_back(peers[rank].name);
    latencies.us.emplace_back();
    for (size_t other = 0; other < peers.size(); ++other) {
      const bool is_known = row.is_array() && other < row.size() && row[other].is_number();
      latencies.us.back().push_back(is_known ? row[other].get<double>() : kNoLatency);
    }
  }
  return latencies;
}

}  // namespace

int MeasuringRounds(int size) { return size % 2 == 0 ? size - 1 : size; }

// The tournament of the circle method: with an even number of seats the last one stays, and the
// others turn by one place a round. An odd number leaves one seat empty.
int PartnerIn(int round, int rank, int size) {
  const int turning = MeasuringRounds(size);
  int partner = round;
  if (rank < turning) {
    partner = ((2 * round - rank) % turning + turning) % turning;
    partner = partner == rank ? turning : partner;
  }
  return partner < size ? partner : -1;
}

absl::StatusOr<std::optional<Latencies>> MeasureBetween(const MeasuringHost& host,
                                                        const comm::JobKey& key, comm::Store& store,
                                                        Deadline deadline) {
  comm::DataListener::Options options;
  options.epoch = host.epoch;
  options.self = host.rank;
  options.world_size = host.size;
  DT_ASSIGN_OR_RETURN(const auto listener,
                      comm::DataListener::Create({host.address, 0}, key, options));
  DT_ASSIGN_OR_RETURN(const std::vector<Peer> peers,
                      MeetHosts(host, listener->port(), store, deadline));
  Json row(std::vector<double>(peers.size(), kNoLatency));
  for (int round = 0; round < MeasuringRounds(host.size); ++round) {
    const std::string place = absl::StrCat("measure/round/", round);
    DT_RETURN_IF_ERROR(store.Set(comm::RankKey(place, host.rank), "1", deadline));
    // Nobody measures while another pair still has one of its two hosts.
    DT_RETURN_IF_ERROR(comm::WaitForRanks(store, place, host.size, deadline, "the measurement"));
    const int partner = PartnerIn(round, host.rank, host.size);
    if (partner < 0) {
      continue;
    }
    const Peer& peer = peers[static_cast<size_t>(partner)];
    const Deadline pair_end = Earlier(deadline, Deadline::After(kPairTime));
    auto socket = Connection(host, partner, peer, key, *listener, pair_end);
    const absl::StatusOr<double> us = socket.ok() ? Ping(**socket, host.rank < partner, pair_end)
                                                  : absl::StatusOr<double>(socket.status());
    if (!us.ok()) {
      DT_LOG(Warning) << "the latency to " << peer.name
                      << " is not known: " << us.status().message();
    } else if (host.rank < partner) {  // The other one's times have the first one's pauses in them.
      row[static_cast<size_t>(partner)] = *us;
    }
  }
  DT_RETURN_IF_ERROR(store.Set(RowKey(host.rank), DumpJson(row), deadline));
  if (host.rank != 0) {
    return std::optional<Latencies>();
  }
  DT_ASSIGN_OR_RETURN(Latencies latencies, Gather(peers, store, deadline));
  return std::optional<Latencies>(std::move(latencies));
}

absl::StatusOr<std::optional<Latencies>> MeasureAsRank(const Environment& environment) {
  DT_ASSIGN_OR_RETURN(const JobEnv env, ResolveJobEnv(environment));
  if (!env.store_is_served || env.world_size < 2) {
    return absl::FailedPreconditionError(
        "dtrain topo --measure measures between the hosts of a job; start it as its ranks: dtrain "
        "launch --hostfile HOSTS --nproc-per-node 1 -- dtrain topo --measure");
  }
  const Deadline deadline = Deadline::After(kMeasureTime);
  DT_ASSIGN_OR_RETURN(const comm::JobKey key, comm::JobKey::Load(env.token_fd, env.token_file));
  MeasuringHost host{.rank = env.rank,
                     .size = env.world_size,
                     .epoch = static_cast<uint64_t>(env.attempt),
                     .name = HostName(),
                     .address = env.host_address};
  const comm::Hello hello{.epoch = host.epoch,
                          .role = comm::Hello::Role::kRank,
                          .id = env.rank,
                          .name = absl::StrCat("rank ", env.rank)};
  DT_ASSIGN_OR_RETURN(const auto store, comm::StoreClient::Connect({env.store_host, env.store_port},
                                                                   key, hello, deadline));
  if (host.address.empty()) {
    host.address = store->local_endpoint().host;
  }
  return MeasureBetween(host, key, *store, deadline);
}

}  // namespace dtrain::launcher
