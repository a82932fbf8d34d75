#include "comm/transport/rdma/gid.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain::comm {
namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsLinkLocal(const GidBytes& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

absl::string_view TypeName(RdmaGid::Type type) {
  switch (type) {
    case RdmaGid::Type::kRoceV2:
      return "RoCE v2";
    case RdmaGid::Type::kRoceV1:
      return "RoCE v1";
    case RdmaGid::Type::kInfiniBand:
      return "InfiniBand";
  }
  return "unknown";
}

// The rank of an address's kind; lower is better.
int KindOf(const GidBytes& gid) { return IsIpv4Mapped(gid) ? 0 : IsLinkLocal(gid) ? 2 : 1; }

// The address in its canonical spelling, so that texts can be compared.
std::string Normalized(absl::string_view address) {
  GidBytes bytes = {};
  const std::string text(address);
  if (inet_pton(AF_INET, text.c_str(), bytes.data() + sizeof(kMappedPrefix)) == 1) {
    std::memcpy(bytes.data(), kMappedPrefix, sizeof(kMappedPrefix));
    return GidText(bytes);
  }
  return inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1 ? GidText(bytes) : std::string();
}

bool Holds(const RdmaPort& port, const std::string& address) {
  return std::any_of(port.gids.begin(), port.gids.end(),
                     [&](const RdmaGid& gid) { return GidText(gid.bytes) == address; });
}

}  // namespace

bool IsIpv4Mapped(const GidBytes& gid) {
  return std::equal(std::begin(kMappedPrefix), std::end(kMappedPrefix), gid.begin());
}

std::string GidText(const GidBytes& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  if (IsIpv4Mapped(gid)) {
    inet_ntop(AF_INET, gid.data() + sizeof(kMappedPrefix), text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, gid.data(), text, sizeof(text));
  }
  return text;
}

std::string DescribeGids(absl::Span<const RdmaGid> gids) {
  if (gids.empty()) {
    return "none";
  }
  return absl::StrJoin(gids, "; ", [](std::string* out, const RdmaGid& gid) {
    absl::StrAppendFormat(out, "%d: %s (%s%s)", gid.index, GidText(gid.bytes), TypeName(gid.type),
                          gid.netdev.empty() ? "" : ", " + gid.netdev);
  });
}

std::string DescribePorts(absl::Span<const RdmaPort> ports) {
  if (ports.empty()) {
    return "none";
  }
  return absl::StrJoin(ports, ", ", [](std::string* out, const RdmaPort& port) {
    absl::StrAppendFormat(out, "%s/%d (%s, %s)", port.device, port.number,
                          port.ethernet ? "Ethernet" : "InfiniBand", port.state);
  });
}

absl::StatusOr<RdmaGid> ChooseGid(absl::Span<const RdmaGid> gids, int wanted_index,
                                  absl::string_view address) {
  const std::string own = Normalized(address);
  std::string netdev;  // The network device that has the address.
  for (const RdmaGid& gid : gids) {
    if (!own.empty() && GidText(gid.bytes) == own) {
      netdev = gid.netdev;
    }
  }
  const RdmaGid* best = nullptr;
  const auto rank = [&](const RdmaGid& gid) {
    const bool exact = GidText(gid.bytes) == own;
    const bool elsewhere = !netdev.empty() && gid.netdev != netdev;
    return (exact ? 0 : 8) + (elsewhere ? 4 : 0) + KindOf(gid.bytes);
  };
  for (const RdmaGid& gid : gids) {
    if (gid.type != RdmaGid::Type::kRoceV2 || (wanted_index >= 0 && gid.index != wanted_index)) {
      continue;
    }
    if (best == nullptr || rank(gid) < rank(*best)) {
      best = &gid;
    }
  }
  if (best != nullptr) {
    return *best;
  }
  if (wanted_index >= 0) {
    return absl::NotFoundError(absl::StrFormat("gid_index %d is no RoCE v2 GID; there are: %s",
                                               wanted_index, DescribeGids(gids)));
  }
  return absl::NotFoundError(
      absl::StrFormat("no RoCE v2 GID; there are: %s; give the port's network device an IP address",
                      DescribeGids(gids)));
}

absl::StatusOr<RdmaGid> ChooseInfiniBandGid(absl::Span<const RdmaGid> gids, int wanted_index) {
  const RdmaGid* best = nullptr;
  for (const RdmaGid& gid : gids) {
    const bool wanted = wanted_index < 0 || gid.index == wanted_index;
    if (wanted && (best == nullptr || gid.index < best->index)) {
      best = &gid;
    }
  }
  if (best != nullptr) {
    return *best;
  }
  return absl::NotFoundError(
      wanted_index < 0
          ? std::string("it has no GID; load the InfiniBand driver anew, or look at ibstat")
          : absl::StrFormat("gid_index %d does not exist; there are: %s", wanted_index,
                            DescribeGids(gids)));
}

absl::StatusOr<PortChoice> ChoosePort(absl::Span<const RdmaPort> ports, const PortWish& wish) {
  std::vector<const RdmaPort*> candidates;
  bool exists = false;
  for (const RdmaPort& port : ports) {
    const bool wanted = wish.device.empty() || port.device == wish.device;
    exists = exists || wanted;
    if (wanted && port.active) {
      candidates.push_back(&port);
    }
  }
  if (!exists) {
    return absl::NotFoundError(
        wish.device.empty()
            ? std::string("this host has no RDMA device: load its driver, or set comm.transport to "
                          "tcp")
            : absl::StrFormat("RDMA device \"%s\" does not exist; there are: %s", wish.device,
                              DescribePorts(ports)));
  }
  if (candidates.empty()) {
    return absl::NotFoundError(
        absl::StrFormat("no active RDMA port%s; there are: %s; bring its network device up (ip "
                        "link; InfiniBand: its subnet manager), or set comm.transport to tcp",
                        wish.device.empty() ? "" : " on " + wish.device, DescribePorts(ports)));
  }
  const std::string own = Normalized(wish.address);
  std::stable_partition(candidates.begin(), candidates.end(),
                        [&](const RdmaPort* port) { return Holds(*port, own); });
  std::stable_partition(candidates.begin(), candidates.end(),
                        [&](const RdmaPort* port) { return port->device == wish.near; });
  absl::Status why_not;
  for (const RdmaPort* const port : candidates) {
    const auto gid = port->ethernet ? ChooseGid(port->gids, wish.gid_index, wish.address)
                                    : ChooseInfiniBandGid(port->gids, wish.gid_index);
    if (gid.ok()) {
      return PortChoice{port->device,    port->number, port->ethernet,
                        port->mtu_bytes, port->lid,    *gid};
    }
    if (why_not.ok()) {
      why_not =
          absl::Status(gid.status().code(), absl::StrFormat("RDMA port %s/%d: %s", port->device,
                                                            port->number, gid.status().message()));
    }
  }
  return why_not;
}

}  // namespace dtrain::comm
