#include "comm/transport/rdma/connect_rdma.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "comm/call_timeout.h"
#include "comm/transport/rdma/rdma_transport.h"
#include "comm/transport/rdma/real_verbs.h"
#include "comm/transport/rdma/request_id.h"

namespace dtrain::comm {
namespace {

constexpr int kQueuePairsMax = 8;
constexpr uint32_t kFormat = 3;

// The facts that a rank sends a peer about its end, byte for byte. If `code` is not 0, `text` says
// why it cannot connect.
struct EndCard {
  uint32_t format = kFormat;
  int32_t code = 0;
  char text[952] = {};
  GidBytes gid = {};
  int32_t mtu_bytes = 0;
  int32_t pairs = 0;
  int32_t slots = 0;
  uint32_t region_key = 0;
  uint64_t slot_bytes = 0;
  uint64_t slots_address = 0;
  uint64_t offers_address = 0;
  uint64_t direct_bytes_min = 0;
  uint32_t numbers[kQueuePairsMax] = {};
  uint32_t first_packets[kQueuePairsMax] = {};
  Ece extensions[kQueuePairsMax] = {};  // The lower rank's offer, then the higher one's answer.
  int32_t ethernet = 0;
  uint32_t lid = 0;
  // Whether the rank would take another port if the nearest device were not known.
  int32_t has_other_port = 0;
  int32_t unused = 0;
};
static_assert(sizeof(EndCard) == 1168, "the same on every host, without padding");

// Nothing but the deadline interrupts the set-up, and no compute thread waits for it.
constexpr auto kNever = [] { return absl::OkStatus(); };
constexpr auto kNo = [] { return false; };

VerbsApi& VerbsOf(const RdmaOptions& options) {
  return options.verbs != nullptr ? *options.verbs : RealVerbs();
}

void SetStatus(EndCard& card, const absl::Status& status) {
  card.code = static_cast<int32_t>(status.code());
  const absl::string_view text = status.message();
  text.copy(card.text, sizeof(card.text) - 1);
}

absl::Status StatusOf(const EndCard& card) {
  return absl::Status(static_cast<absl::StatusCode>(card.code),
                      absl::string_view(card.text, strnlen(card.text, sizeof(card.text))));
}

// Logs the refusal once a process, because every group of a rank would get the same.
void TellOfCopies(const absl::Status& refused) {
  static std::once_flag told;
  std::call_once(told, [&] {
    DT_LOG(Warning) << "long messages over RDMA are copied where their memory is not registered, "
                       "because this system refuses userfaultfd ("
                    << refused.message()
                    << "): let the container's seccomp profile allow it, or set sysctl "
                       "vm.unprivileged_userfaultfd to 1";
  });
}

// The set-up of one rank, in steps that all ranks take together.
class Connector {
 public:
  Connector(std::unique_ptr<StreamTransport> mesh, const RdmaOptions& options,
            const std::string& address, Deadline deadline)
      : options_(options),
        address_(address),
        deadline_(deadline),
        rank_(static_cast<size_t>(mesh->rank())),
        size_(static_cast<size_t>(mesh->size())),
        mine_(size_),
        theirs_(size_) {
    parts_.mesh = std::move(mesh);
    parts_.probe_interval = options.probe_interval;
    parts_.retry_budget = RetryBudget({.timeout = options.timeout, .retries = options.retries});
    parts_.direct_bytes_min = options.direct_bytes_min;
  }

  // OK: `transport()` works. Otherwise this rank's error or, with its name, another's; then all
  // ranks get an error.
  absl::Status Run() {
    DT_RETURN_IF_ERROR(Agree(FindPort()));
    DT_RETURN_IF_ERROR(Agree(Prepare()));
    DT_RETURN_IF_ERROR(Agree(AnswerOffers()));
    DT_RETURN_IF_ERROR(Agree(ConnectPairs()));
    transport_ = std::make_unique<RdmaTransport>(std::move(parts_));
    return Agree(Greet());
  }
  // Whether all ranks know the outcome: then they may go on over the mesh after a failed Run.
  bool agreed() const { return agreed_; }
  bool any_port() const { return any_port_; }
  // Whether some rank took a port because it is near, and would otherwise take another one.
  bool any_other_port() const { return any_other_port_; }
  std::unique_ptr<RdmaTransport> transport() { return std::move(transport_); }
  std::unique_ptr<StreamTransport> TakeMesh() {
    return transport_ != nullptr ? transport_->TakeMesh() : std::move(parts_.mesh);
  }

 private:
  StreamTransport& mesh() { return transport_ != nullptr ? transport_->mesh() : *parts_.mesh; }

  absl::Status FindPort() {
    DT_ASSIGN_OR_RETURN(port_, FindRdmaPort(options_, address_));
    parts_.port_name = absl::StrFormat("%s/%d", port_.device, port_.port);
    if (!options_.near_device.empty()) {
      RdmaOptions anywhere = options_;
      anywhere.near_device = "";
      const auto other = FindRdmaPort(anywhere, address_);
      const bool differs = other.ok() && other->device != port_.device;
      for (EndCard& card : mine_) {
        card.has_other_port = differs ? 1 : 0;
      }
    }
    return absl::OkStatus();
  }

  // Makes the other objects that need no peer.
  absl::Status Prepare() {
    const int peers = static_cast<int>(size_) - 1;
    DT_ASSIGN_OR_RETURN(parts_.plan, PlanRing(options_.slots, options_.slot_bytes, peers,
                                              options_.staging_bytes_max));
    const size_t ring = static_cast<size_t>(parts_.plan.slots) * parts_.plan.slot_bytes;
    const int depth = RdmaTransport::QueueDepth(parts_.plan);
    DT_ASSIGN_OR_RETURN(
        parts_.device,
        VerbsOf(options_).Open(port_.device, port_.port, 2 * depth * options_.queue_pairs * peers));
    const size_t for_peer = RdmaPeer::StagingBytes(parts_.plan);
    DT_ASSIGN_OR_RETURN(StagingMemory staging,
                        StagingMemory::Create(for_peer * static_cast<size_t>(peers)));
    parts_.staging = std::make_unique<StagingMemory>(std::move(staging));
    DT_ASSIGN_OR_RETURN(parts_.region,
                        parts_.device->Register(parts_.staging->data(), parts_.staging->bytes()));
    auto watch = UserfaultWatch::Create();  // Without it only registered memory is sent directly.
    if (!watch.ok()) {
      TellOfCopies(watch.status());
    }
    parts_.memory = std::make_unique<MemoryCache>(
        *parts_.device, watch.ok() ? *std::move(watch) : nullptr, options_.kept_bytes_max);
    SplitMix64 random(static_cast<uint64_t>(Clock::Real().MonotonicNanos()) ^ rank_);
    std::byte* next = parts_.staging->data();
    for (size_t peer = 0; peer < size_; ++peer) {
      RdmaPeer& made = parts_.peers.emplace_back(parts_.plan.slots);
      if (peer == rank_) {
        continue;
      }
      made.send_slots = next;
      made.receive_slots = next + ring;
      made.offers_out = reinterpret_cast<Offer*>(next + 2 * ring);
      made.offers_in = made.offers_out + kOffersMax;
      next += for_peer;
      DT_RETURN_IF_ERROR(MakePairs(peer, made, depth, random));
    }
    return absl::OkStatus();
  }

  absl::Status MakePairs(size_t peer, RdmaPeer& made, int depth, SplitMix64& random) {
    EndCard& card = mine_[peer];
    card.gid = port_.gid.bytes;
    card.ethernet = port_.ethernet ? 1 : 0;
    card.lid = port_.lid;
    card.mtu_bytes = port_.mtu_bytes;
    card.pairs = options_.queue_pairs;
    card.slots = parts_.plan.slots;
    card.slot_bytes = parts_.plan.slot_bytes;
    card.region_key = parts_.region->remote_key();
    card.slots_address = reinterpret_cast<uint64_t>(made.receive_slots);
    card.offers_address = reinterpret_cast<uint64_t>(made.offers_in);
    card.direct_bytes_min = options_.direct_bytes_min;
    for (size_t pair = 0; pair < static_cast<size_t>(options_.queue_pairs); ++pair) {
      DT_ASSIGN_OR_RETURN(auto created, parts_.device->CreateQueuePair(depth, depth));
      card.numbers[pair] = created->number();
      card.first_packets[pair] = static_cast<uint32_t>(random.Below(1U << 24));
      card.extensions[pair] = created->Offer();
      made.pairs.push_back(std::move(created));
    }
    return absl::OkStatus();
  }

  absl::Status AnswerOffers() {
    return ForEachPeer([this](size_t peer) { return AnswerOffersOf(peer); });
  }
  absl::Status ConnectPairs() {
    return ForEachPeer([this](size_t peer) { return ConnectTo(peer); });
  }
  absl::Status ForEachPeer(absl::FunctionRef<absl::Status(size_t peer)> act) {
    for (size_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        DT_RETURN_IF_ERROR(Annotate(act(peer), parts_.mesh->PeerName(static_cast<int>(peer))));
      }
    }
    return absl::OkStatus();
  }

  // The queue pairs of the lower rank offer extensions, and those of the higher rank answer.
  absl::Status AnswerOffersOf(size_t peer) {
    DT_RETURN_IF_ERROR(CheckAlike(mine_[peer], theirs_[peer]));
    const QueuePairSettings settings = SettingsTowards(peer);
    RdmaPeer& made = parts_.peers[peer];
    for (size_t pair = 0; peer < rank_ && pair < made.pairs.size(); ++pair) {
      DT_ASSIGN_OR_RETURN(mine_[peer].extensions[pair],
                          made.pairs[pair]->Answer(settings, theirs_[peer].extensions[pair]));
    }
    return absl::OkStatus();
  }

  QueuePairSettings SettingsTowards(size_t peer) const {
    QueuePairSettings settings;
    settings.port = port_.port;
    settings.ethernet = port_.ethernet;
    settings.gid_index = port_.gid.index;
    settings.mtu_bytes = std::min(mine_[peer].mtu_bytes, theirs_[peer].mtu_bytes);
    settings.traffic_class = options_.traffic_class;
    settings.service_level = options_.service_level;
    settings.timeout = options_.timeout;
    settings.retries = options_.retries;
    return settings;
  }

  static QueuePairEnd EndOf(const EndCard& card, size_t pair) {
    return {card.gid, card.numbers[pair], card.first_packets[pair],
            static_cast<uint16_t>(card.lid)};
  }

  absl::Status ConnectTo(size_t peer) {
    const EndCard& mine = mine_[peer];
    const EndCard& theirs = theirs_[peer];
    RdmaPeer& made = parts_.peers[peer];
    made.remote_slots = theirs.slots_address;
    made.remote_offers = theirs.offers_address;
    made.remote_key = theirs.region_key;
    const QueuePairSettings settings = SettingsTowards(peer);
    for (size_t pair = 0; pair < made.pairs.size(); ++pair) {
      const QueuePairEnd self = EndOf(mine, pair);
      const QueuePairEnd other = EndOf(theirs, pair);
      if (rank_ < peer) {
        DT_RETURN_IF_ERROR(made.pairs[pair]->Take(theirs.extensions[pair]));
      }
      DT_RETURN_IF_ERROR(
          Annotate(made.pairs[pair]->Connect(settings, self, other),
                   absl::StrFormat("from %s to %s", GidText(self.gid), GidText(other.gid))));
      const uint64_t id = RequestId{RequestId::Kind::kReceive, peer, pair, 0}.Encode();
      for (int i = 0; i < RdmaTransport::QueueDepth(parts_.plan); ++i) {
        DT_RETURN_IF_ERROR(made.pairs[pair]->PostReceive(id));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status CheckAlike(const EndCard& mine, const EndCard& theirs) {
    if (theirs.format != kFormat) {
      return absl::FailedPreconditionError(
          "its RDMA card has another format: run one version of dtrain on all nodes");
    }
    if (mine.pairs != theirs.pairs || mine.slots != theirs.slots ||
        mine.slot_bytes != theirs.slot_bytes || mine.direct_bytes_min != theirs.direct_bytes_min) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "it has %d queue pairs, %d slots of %d bytes and long messages from %d bytes on, this "
          "rank %d, %d of %d and %d: give all ranks the same configuration",
          theirs.pairs, theirs.slots, theirs.slot_bytes, theirs.direct_bytes_min, mine.pairs,
          mine.slots, mine.slot_bytes, mine.direct_bytes_min));
    }
    if (mine.ethernet != theirs.ethernet) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "its port is %s and this rank's is %s, which cannot be connected: set comm.rdma.device "
          "to a device of one network on each node",
          theirs.ethernet != 0 ? "Ethernet" : "InfiniBand",
          mine.ethernet != 0 ? "Ethernet" : "InfiniBand"));
    }
    if (mine.ethernet != 0 && IsIpv4Mapped(mine.gid) != IsIpv4Mapped(theirs.gid)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "its GID is %s and this rank's is %s: RoCE v2 connects IPv4 to IPv4 and IPv6 to IPv6; "
          "set gid_index, or give both network devices an address of one family",
          GidText(theirs.gid), GidText(mine.gid)));
    }
    return absl::OkStatus();
  }

  absl::Status Greet() {
    // Ends before the deadline, so that all ranks learn in time of a peer that cannot be reached.
    const Deadline half = Deadline::After(deadline_.Remaining() / 2);
    return transport_->Greet({half, kNever, kNo});
  }

  // All ranks exchange their status; all get the first error in rank order.
  absl::Status Agree(const absl::Status& own) {
    std::vector<Transfer> transfers;
    SetStatus(mine_[rank_], own);
    theirs_[rank_] = mine_[rank_];
    for (size_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        SetStatus(mine_[peer], own);
        transfers.push_back(SendTo(static_cast<int>(peer), &mine_[peer], sizeof(EndCard)));
        transfers.push_back(ReceiveFrom(static_cast<int>(peer), &theirs_[peer], sizeof(EndCard)));
      }
    }
    agreed_ = false;
    DT_RETURN_IF_ERROR(mesh().Move(transfers, {deadline_, kNever, kNo}));
    agreed_ = true;
    for (const EndCard& card : theirs_) {
      any_port_ = any_port_ || card.code == 0;
      any_other_port_ = any_other_port_ || card.has_other_port != 0;
    }
    for (size_t rank = 0; rank < size_; ++rank) {
      DT_RETURN_IF_ERROR(
          Annotate(StatusOf(theirs_[rank]), mesh().PeerName(static_cast<int>(rank))));
    }
    return absl::OkStatus();
  }

  const RdmaOptions& options_;
  const std::string& address_;
  const Deadline deadline_;
  const size_t rank_;
  const size_t size_;
  std::vector<EndCard> mine_;    // By peer: the card that it is sent.
  std::vector<EndCard> theirs_;  // By peer: the card that it sent.
  PortChoice port_;
  RdmaTransport::Parts parts_;
  std::unique_ptr<RdmaTransport> transport_;
  bool agreed_ = false;
  bool any_port_ = false;  // Some rank has a port.
  bool any_other_port_ = false;
};

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t min, int64_t max) {
  return value >= min && value <= max
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrFormat("RDMA %s is %d; allowed: %d to %d", name, value, min, max));
}

}  // namespace

absl::Status CheckRdmaOptions(const RdmaOptions& options) {
  DT_RETURN_IF_ERROR(CheckRange("gid_index", options.gid_index, -1, 255));
  DT_RETURN_IF_ERROR(CheckRange("queue_pairs", options.queue_pairs, 1, kQueuePairsMax));
  DT_RETURN_IF_ERROR(CheckRange("traffic_class", options.traffic_class, 0, 255));
  DT_RETURN_IF_ERROR(CheckRange("service_level", options.service_level, 0, 7));
  DT_RETURN_IF_ERROR(CheckRange("timeout", options.timeout, 1, 31));
  DT_RETURN_IF_ERROR(CheckRange("retries", options.retries, 0, 7));
  DT_RETURN_IF_ERROR(CheckRange("slots", options.slots, 2, kSlotsMax));
  DT_RETURN_IF_ERROR(CheckRange("direct_bytes_min", static_cast<int64_t>(options.direct_bytes_min),
                                4096, std::numeric_limits<int64_t>::max()));
  return CheckRange("slot_bytes", static_cast<int64_t>(options.slot_bytes), 4096, 16 << 20);
}

absl::StatusOr<PortChoice> FindRdmaPort(const RdmaOptions& options, const std::string& address) {
  DT_ASSIGN_OR_RETURN(const std::vector<RdmaPort> ports, VerbsOf(options).Ports());
  return ChoosePort(ports, {options.device, options.gid_index, address, options.near_device});
}

absl::StatusOr<RdmaConnection> ConnectRdma(std::unique_ptr<StreamTransport> mesh,
                                           const RdmaOptions& options, const std::string& address,
                                           bool required, Deadline deadline) {
  std::optional<Connector> connector(std::in_place, std::move(mesh), options, address, deadline);
  const absl::Status status = connector->Run();
  if (status.ok()) {
    return RdmaConnection{connector->transport(), true};
  }
  const absl::Status reason = Annotate(status, "connecting over RDMA");
  auto kept = connector->TakeMesh();
  const bool agreed = connector->agreed();
  const bool any_port = connector->any_port();
  const bool any_other_port = connector->any_other_port();
  connector.reset();  // Frees its pinned memory too.
  if (agreed && any_other_port) {
    // Some networks join only devices of one place on each node, as rails do.
    if (kept->rank() == 0) {
      DT_LOG(Warning) << "the RDMA devices nearest to the ranks do not reach each other; trying "
                         "those of the ranks' addresses: "
                      << reason.message();
    }
    RdmaOptions anywhere = options;
    anywhere.near_device = "";
    return ConnectRdma(std::move(kept), anywhere, address, required, deadline);
  }
  if (required || !agreed) {
    if (!agreed) {  // If the ranks agreed, each has the same error already.
      kept->Shutdown(reason);
    }
    return reason;
  }
  if (kept->rank() == 0 && any_port) {
    DT_LOG(Warning) << "going on over TCP: " << reason.message();
  }
  return RdmaConnection{std::move(kept), false};
}

}  // namespace dtrain::comm
