// Which port and which GID a rank uses. Pure functions of what the devices say.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

struct PortWish {
  std::string device;     // "": any.
  int gid_index = -1;     // -1: any.
  std::string address;    // The rank's own, numeric: the port and GID that hold it are preferred.
  std::string near = {};  // The device nearest to the rank, preferred before that; "": unknown.
};

struct PortChoice {
  std::string device;
  int port = 1;
  bool ethernet = true;
  int mtu_bytes = 1024;
  uint16_t lid = 0;  // InfiniBand.
  RdmaGid gid;
};

// "10.0.0.1" for an IPv4-mapped GID, else IPv6 text.
std::string GidText(const GidBytes& gid);
bool IsIpv4Mapped(const GidBytes& gid);
// "0: fe80::1 (RoCE v1, eth0); 1: 10.0.0.1 (RoCE v2, eth0)", or "none".
std::string DescribeGids(absl::Span<const RdmaGid> gids);
// "rxe0/1 (Ethernet, ACTIVE), mlx5_0/1 (InfiniBand, DOWN)", or "none".
std::string DescribePorts(absl::Span<const RdmaPort> ports);

// RoCE v2 only. Of those: the wanted index; else the one that is `address`; else on the network
// device of `address` (where it is found among the GIDs) IPv4 before global IPv6 before link-local,
// then the same on any device; ties go to the lower index. NotFound lists the GIDs there are.
absl::StatusOr<RdmaGid> ChooseGid(absl::Span<const RdmaGid> gids, int wanted_index,
                                  absl::string_view address);

// Chooses on an InfiniBand port: the wanted index, else the lowest. NotFound lists the GIDs there
// are.
absl::StatusOr<RdmaGid> ChooseInfiniBandGid(absl::Span<const RdmaGid> gids, int wanted_index);

// An active port of the wanted device, or of any: that of the nearest device first, then the one
// that holds `address`, else the first with a GID (Ethernet: of RoCE v2). NotFound says which
// devices and states there are.
absl::StatusOr<PortChoice> ChoosePort(absl::Span<const RdmaPort> ports, const PortWish& wish);

}  // namespace dtrain::comm
