// How the ranks of a group find each other: each publishes where it can be reached, reads the
// others' lines, and decides from all of them which transport to use; the decision is the same on
// all ranks. Over the TCP connections the ranks then agree whether to use RDMA instead.
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/collectives/algorithm.h"
#include "comm/collectives/hierarchical_collectives.h"
#include "comm/collectives/message_collectives.h"
#include "comm/collectives/probe_link.h"
#include "comm/collectives/shm_collectives.h"
#include "comm/group.h"
#include "comm/host_group.h"
#include "comm/net/socket.h"
#include "comm/net/store.h"
#include "comm/node_layout.h"
#include "comm/transport/rdma/connect_rdma.h"
#include "comm/transport/subset_transport.h"
#include "comm/transport/tcp_mesh.h"
#include "comm/transport/unix_mesh.h"

namespace dtrain::comm {
namespace {

// A rank's line in the store.
struct RankCard {
  std::string node_id;
  std::string unix_name;
  std::string unix_nonce;
  int64_t pid = 0;
  bool allow_shared_memory = true;
  // The options that decide the order of sums, and so the messages: equal on all ranks.
  std::string sums;
  // GroupOptions::network: equal on all ranks.
  std::string network;
};

std::string SumsOf(const GroupOptions& options) {
  const char* const names[] = {"automatic", "direct", "ring", "doubling", "halving"};
  return absl::StrCat(names[static_cast<int>(options.algorithm)],
                      options.deterministic ? " deterministic" : "");
}

std::string NetworkOf(const GroupOptions& options) {
  const char* const names[] = {"automatic", "tcp", "rdma"};
  return absl::StrFormat("%s, %d TCP connections%s", names[static_cast<int>(options.network)],
                         options.tcp_connections, options.tcp_tls ? " with TLS" : "");
}

std::string Encode(const RankCard& card) {
  return DumpJson(Json{{"node", card.node_id},
                       {"unix", card.unix_name},
                       {"nonce", card.unix_nonce},
                       {"pid", card.pid},
                       {"shm", card.allow_shared_memory},
                       {"sums", card.sums},
                       {"network", card.network}});
}

absl::StatusOr<RankCard> Decode(const std::string& text, int rank) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, absl::StrFormat("card of rank %d", rank)));
  const auto string_of = [&json](const char* key) {
    const auto it = json.find(key);
    return it != json.end() && it->is_string() ? it->get<std::string>() : std::string();
  };
  if (!json.is_object() || !json.contains("shm") || !json["shm"].is_boolean() ||
      !json.contains("pid") || !json["pid"].is_number_integer()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("rank %d published a card of another format: run one version of dtrain on "
                        "all nodes",
                        rank));
  }
  return RankCard{string_of("node"),          string_of("unix"),       string_of("nonce"),
                  json["pid"].get<int64_t>(), json["shm"].get<bool>(), string_of("sums"),
                  string_of("network")};
}

std::string Prefix(const GroupOptions& options) {
  return absl::StrCat("group/", options.name, "/", options.epoch);
}

absl::StatusOr<std::vector<RankCard>> ExchangeCards(Store& store, const GroupOptions& options,
                                                    const RankCard& mine, Deadline deadline) {
  const std::string prefix = Prefix(options);
  DT_RETURN_IF_ERROR(store.Set(RankKey(prefix, options.rank), Encode(mine), deadline));
  DT_RETURN_IF_ERROR(Annotate(WaitForRanks(store, prefix, options.size, deadline,
                                           absl::StrFormat("group \"%s\"", options.name)),
                              absl::StrFormat("creating group \"%s\"", options.name)));
  std::vector<RankCard> cards;
  for (int rank = 0; rank < options.size; ++rank) {
    DT_ASSIGN_OR_RETURN(const std::string text, store.Get(RankKey(prefix, rank), deadline));
    DT_ASSIGN_OR_RETURN(RankCard card, Decode(text, rank));
    if (card.sums != mine.sums) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "group \"%s\": rank %d sums \"%s\", rank %d sums \"%s\": give all ranks the same "
          "configuration",
          options.name, options.rank, mine.sums, rank, card.sums));
    }
    if (card.network != mine.network) {
      return absl::InvalidArgumentError(
          absl::StrFormat("group \"%s\": rank %d is to use \"%s\" between nodes, rank %d \"%s\": "
                          "give all ranks the "
                          "same configuration",
                          options.name, options.rank, mine.network, rank, card.network));
    }
    cards.push_back(std::move(card));
  }
  return cards;
}

// The layout follows from the cards alone, so all ranks agree on it.
NodeLayout LayoutOf(const std::vector<RankCard>& cards, int rank) {
  std::vector<std::string> node_ids;
  bool shared_memory = true;
  for (const RankCard& card : cards) {
    node_ids.push_back(card.node_id);
    shared_memory = shared_memory && card.allow_shared_memory;
  }
  for (size_t i = 0; i < node_ids.size() && !shared_memory; ++i) {
    node_ids[i] = absl::StrCat(i);  // Each rank counts as a node of its own.
  }
  return LayOutNodes(node_ids, rank);
}

absl::Status CheckOptions(Store* store, const GroupOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d of %d in group \"%s\": ranks are 0 to size - 1", options.rank,
                        options.size, options.name));
  }
  if (store == nullptr && options.size > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "group \"%s\" of %d ranks was given no store to meet in", options.name, options.size));
  }
  if (!options.host_interface.empty()) {
    DT_RETURN_IF_ERROR(Annotate(InterfaceAddress(options.host_interface).status(),
                                "comm.interface cannot be used: set it to one of those with an "
                                "address, or leave it out"));
  }
  if (options.tcp_connections < 1 || options.tcp_connections > 16) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d TCP connections to each peer; allowed: 1 to 16", options.tcp_connections));
  }
  if (options.tcp_tls && options.network == Network::kRdma) {
    return absl::InvalidArgumentError(
        "RDMA is required and TLS is asked for: packets of RoCE cannot be encrypted; set "
        "comm.transport to tcp or auto, or comm.tcp.tls to false");
  }
  if (options.network != Network::kTcp) {
    DT_RETURN_IF_ERROR(CheckRdmaOptions(options.rdma));
  }
  return absl::OkStatus();
}

// Nothing but the deadline interrupts the set-up, and no compute thread waits for it.
constexpr auto kNever = [] { return absl::OkStatus(); };
constexpr auto kNo = [] { return false; };
WaitContext SetUp(Deadline deadline) { return {deadline, kNever, kNo}; }

absl::StatusOr<std::unique_ptr<ShmCollectives>> ConnectShm(UnixListener listener,
                                                           const GroupOptions& options,
                                                           const std::vector<RankCard>& cards,
                                                           const std::vector<int>& ranks,
                                                           Deadline deadline) {
  std::vector<UnixMesh::Member> members;
  int self = 0;
  for (const int rank : ranks) {
    const RankCard& card = cards[static_cast<size_t>(rank)];
    self = rank == options.rank ? static_cast<int>(members.size()) : self;
    members.push_back({rank, card.unix_name, card.unix_nonce});
  }
  DT_ASSIGN_OR_RETURN(UnixMesh mesh,
                      UnixMesh::Connect(std::move(listener), std::move(members), self, deadline));
  return ShmCollectives::Create(std::move(mesh), options.name, SetUp(deadline));
}

absl::StatusOr<RdmaConnection> ConnectNodes(Store& store, const GroupOptions& options,
                                            const std::vector<RankCard>& cards, Deadline deadline) {
  std::vector<std::string> names;
  for (int rank = 0; rank < options.size; ++rank) {
    const RankCard& card = cards[static_cast<size_t>(rank)];
    // A node id may be a host's name, a slash and its boot: people know the name.
    names.push_back(absl::StrFormat("rank %d (node %s, pid %d)", rank,
                                    card.node_id.substr(0, card.node_id.find('/')), card.pid));
  }
  DT_ASSIGN_OR_RETURN(auto mesh,
                      ConnectTcpMesh(store, options, Prefix(options), std::move(names), deadline));
  if (options.network == Network::kTcp || options.tcp_tls) {
    return RdmaConnection{std::move(mesh), false};
  }
  DT_ASSIGN_OR_RETURN(const std::string address, HostAddress(store, options));
  return ConnectRdma(std::move(mesh), options.rdma, address, options.network == Network::kRdma,
                     deadline);
}

// Whether ranks use their node's memory before they send anything to another node: true if all
// nodes have the same number of ranks, more than one, or if each node's ranks are consecutive.
bool NodesFirst(const NodeLayout& layout) {
  return layout.even ? layout.local.size() > 1 : layout.consecutive;
}

// Shared memory on one node; between nodes RDMA or TCP, and memory first where NodesFirst.
absl::StatusOr<std::unique_ptr<Backend>> Connect(Store& store, UnixListener listener,
                                                 const GroupOptions& options,
                                                 const std::vector<RankCard>& cards,
                                                 Deadline deadline) {
  const NodeLayout layout = LayoutOf(cards, options.rank);
  if (layout.nodes == 1) {
    return ConnectShm(std::move(listener), options, cards, layout.local, deadline);
  }
  DT_ASSIGN_OR_RETURN(RdmaConnection between, ConnectNodes(store, options, cards, deadline));
  MessageOptions messages{.name = between.over_rdma ? "rdma" : "tcp",
                          .algorithm = options.algorithm,
                          .deterministic = options.deterministic};
  if (between.over_rdma) {
    // The device moves the bytes, and fewer messages cost less.
    messages.slice_bytes = kDirectChunkBytes;
  }
  if (options.link_cost.has_value()) {
    messages.link_cost = *options.link_cost;
  } else if (options.algorithm == Algorithm::kAutomatic) {
    DT_ASSIGN_OR_RETURN(messages.link_cost, ProbeLink(*between.transport, SetUp(deadline)));
  }
  if (!NodesFirst(layout)) {
    return std::make_unique<MessageCollectives>(std::move(between.transport), messages);
  }
  DT_ASSIGN_OR_RETURN(auto local,
                      ConnectShm(std::move(listener), options, cards, layout.local, deadline));
  const std::shared_ptr<Transport> shared = std::move(between.transport);
  std::vector<int> everybody(static_cast<size_t>(options.size));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto all = std::make_unique<MessageCollectives>(
      std::make_unique<SubsetTransport>(shared, everybody), messages);
  std::unique_ptr<MessageCollectives> across;
  if (!layout.across.empty()) {
    messages.group_ranks = layout.across;
    messages.average_over = options.size;
    across = std::make_unique<MessageCollectives>(
        std::make_unique<SubsetTransport>(shared, layout.across), messages);
  }
  return std::make_unique<HierarchicalCollectives>(std::move(local), std::move(across),
                                                   std::move(all), layout, options.deterministic);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> CreateHostGroup(Store* store, const GroupOptions& options) {
  DT_RETURN_IF_ERROR(CheckOptions(store, options));
  if (options.size == 1) {
    return std::make_unique<HostGroup>(options, nullptr);
  }
  const Deadline deadline = Deadline::After(options.connect_timeout);
  DT_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Create());
  const RankCard mine{
      options.node_id, listener.name,     listener.nonce, getpid(), options.allow_shared_memory,
      SumsOf(options), NetworkOf(options)};
  DT_ASSIGN_OR_RETURN(const std::vector<RankCard> cards,
                      ExchangeCards(*store, options, mine, deadline));
  auto backend = Connect(*store, std::move(listener), options, cards, deadline);
  if (!backend.ok()) {
    return Annotate(backend.status(),
                    absl::StrFormat("rank %d creating group \"%s\"", options.rank, options.name));
  }
  return std::make_unique<HostGroup>(options, *std::move(backend));
}

absl::StatusOr<std::unique_ptr<Group>> SplitHostGroup(Group& parent, Store* store, int color,
                                                      int key) {
  const auto* const host = dynamic_cast<HostGroup*>(&parent);
  if (host == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "SplitHostGroup was given a group over %s: its own class splits it", parent.transport()));
  }
  // Unique to this split, and equal on all ranks.
  const uint64_t number = parent.sequence();
  const std::pair<int32_t, int32_t> mine(color, key);
  std::vector<std::pair<int32_t, int32_t>> all(static_cast<size_t>(parent.size()));
  Buffer one{const_cast<std::pair<int32_t, int32_t>*>(&mine), sizeof(mine), DType::kInt32};
  DT_ASSIGN_OR_RETURN(const Work work,
                      parent.AllGather(one, {all.data(), all.size() * sizeof(mine), DType::kInt32},
                                       {.name = "split", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  if (color < 0) {
    return nullptr;
  }
  std::vector<std::pair<int, int>> members;  // Key and rank.
  for (int rank = 0; rank < parent.size(); ++rank) {
    const auto [their_color, their_key] = all[static_cast<size_t>(rank)];
    if (their_color == color) {
      members.emplace_back(their_key, rank);
    }
  }
  std::sort(members.begin(), members.end());
  const auto self = std::find(members.begin(), members.end(), std::pair(key, parent.rank()));
  GroupOptions part = host->options();
  part.name = absl::StrFormat("%s/split%d.%d", part.name, number, color);
  part.world_ranks.clear();
  for (const auto& [their_key, rank] : members) {
    const std::vector<int>& above = host->options().world_ranks;
    part.world_ranks.push_back(above.empty() ? rank : above[static_cast<size_t>(rank)]);
  }
  part.rank = static_cast<int>(self - members.begin());
  part.size = static_cast<int>(members.size());
  return CreateHostGroup(store, part);
}

}  // namespace dtrain::comm
