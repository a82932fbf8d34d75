// Chooses a rank's port and GID. Pure functions of what devices report.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

struct PortWish {
  std::string device;   // "": any.
  int gid_index = -1;   // -1: any.
  std::string address;  // The rank's numeric address: the port and GID that hold it are preferred.
  std::string near = {};  // The device nearest to the rank, preferred even more; "": unknown.
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

// Chooses among the RoCE v2 GIDs: the wanted index, or else the GID that is `address`. Otherwise
// the network device of `address`, if a GID has it, comes before other devices, and on each IPv4
// before global IPv6 before link-local; ties go to the lower index. NotFound lists the GIDs.
absl::StatusOr<RdmaGid> ChooseGid(absl::Span<const RdmaGid> gids, int wanted_index,
                                  absl::string_view address);

// Chooses on an InfiniBand port: the wanted index, or else the lowest. NotFound lists the GIDs.
absl::StatusOr<RdmaGid> ChooseInfiniBandGid(absl::Span<const RdmaGid> gids, int wanted_index);

// Chooses an active port of the wanted device, or of any: that of the nearest device, or else the
// port that holds `address`, or else the first with a GID (Ethernet: of RoCE v2). NotFound lists
// the devices and their states.
absl::StatusOr<PortChoice> ChoosePort(absl::Span<const RdmaPort> ports, const PortWish& wish);

}  // namespace dtrain::comm
