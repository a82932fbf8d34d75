// How ranks of different nodes use RDMA: RoCE v2 or InfiniBand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace dtrain::comm {

class VerbsApi;  // comm/transport/rdma/verbs_api.h

// What carries messages between ranks that do not share memory.
enum class Network : uint8_t {
  kAutomatic,  // RDMA when every rank has an active port that reaches the others, else TCP.
  kTcp,
  kRdma,  // An error where RDMA cannot be had.
};

struct RdmaOptions {
  // "mlx5_0"; "": the nearest, else the one that holds this rank's address, else the first.
  std::string device = {};
  // The device nearest to this rank's GPU and cores; "": unknown. Where the nearest ones do not
  // reach each other, those that hold the ranks' addresses are tried.
  std::string near_device = {};
  int gid_index = -1;     // The port's; -1: chosen (comm/transport/rdma/gid.h).
  int queue_pairs = 1;    // To each peer, in [1, 8]; several spread over the paths of a switch.
  int traffic_class = 0;  // In [0, 255]: DSCP x 4 (+ ECN bits) of the packets.
  int service_level = 0;  // In [0, 7]: the priority that PFC acts on where it follows the VLAN tag.
  int timeout = 18;       // In [1, 31]: 4.096 us x 2^timeout without an answer is a lost packet.
  // In [0, 7]: of a lost packet, then the peer counts as unreachable. 7 is for ever on soft-RoCE.
  int retries = 6;
  size_t slot_bytes = size_t{256} << 10;  // Staged at a time, in [4 KiB, 16 MiB].
  int slots = 8;                          // Under way to each peer, in [2, 256].
  // All staging memory of a rank; with many peers, slots shrink to fit. It is pinned.
  size_t staging_bytes_max = size_t{256} << 20;
  // Messages from here on are written straight into the receiver's memory, where both ends can be
  // registered. Equal on all ranks.
  size_t direct_bytes_min = size_t{128} << 10;
  // Of memory that nobody registered and that stays pinned because messages may use it again.
  size_t kept_bytes_max = size_t{1} << 30;
  // A peer that sent nothing for so long is asked whether it can still be reached.
  absl::Duration probe_interval = absl::Seconds(1);
  VerbsApi* verbs = nullptr;  // Null: this host's libibverbs. Must outlive the group.
};

}  // namespace dtrain::comm
