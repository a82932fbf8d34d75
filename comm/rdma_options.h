// Options of RDMA between ranks of different nodes: RoCE v2 or InfiniBand. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace dtrain::comm {

class VerbsApi;  // comm/transport/rdma/verbs_api.h

// The network that carries messages between ranks that do not share memory.
enum class Network : uint8_t {
  kAutomatic,  // RDMA when every rank has an active port that reaches the others, else TCP.
  kTcp,
  kRdma,  // An error where RDMA cannot be had.
};

struct RdmaOptions {
  // "mlx5_0"; "": the nearest device, or the one that holds this rank's address, or the first.
  std::string device = {};
  // The device nearest to this rank's GPU and cores; "": unknown. If the nearest devices do not
  // reach each other, those that hold the ranks' addresses are tried.
  std::string near_device = {};
  int gid_index = -1;  // Index in the port's GID table; -1: chosen (comm/transport/rdma/gid.h).
  // Queue pairs to each peer, in [1, 8]; several spread over the paths of a switch.
  int queue_pairs = 1;
  int traffic_class = 0;  // In [0, 255]: DSCP x 4 (+ ECN bits) of the packets.
  int service_level = 0;  // In [0, 7]: the priority that PFC acts on where it follows the VLAN tag.
  int timeout = 18;       // In [1, 31]: 4.096 us x 2^timeout without an answer is a lost packet.
  // In [0, 7]: how often a lost packet is repeated before the peer counts as unreachable. 7 means
  // without end on soft-RoCE.
  int retries = 6;
  size_t slot_bytes = size_t{256} << 10;  // Bytes of a slot, in [4 KiB, 16 MiB].
  int slots = 8;                          // Slots under way to each peer, in [2, 256].
  // All staging memory of a rank; with many peers, slots shrink to fit. It is pinned.
  size_t staging_bytes_max = size_t{256} << 20;
  // Messages from here on are written straight into the receiver's memory, where both ends can be
  // registered. Equal on all ranks.
  size_t direct_bytes_min = size_t{128} << 10;
  // Limit on memory that no caller registered and that stays pinned because messages may use it
  // again.
  size_t kept_bytes_max = size_t{1} << 30;
  // A peer that sent nothing for so long is asked whether it can still be reached.
  absl::Duration probe_interval = absl::Seconds(1);
  VerbsApi* verbs = nullptr;  // Null: this host's libibverbs. Must outlive the group.
};

}  // namespace dtrain::comm
