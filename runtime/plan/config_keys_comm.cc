// The part of the table of keys that says how ranks exchange data.
#include "runtime/plan/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr ConfigKey kCommKeys[] = {
    {"comm.timeout_s", KeyType::kNumber, "600", "(0, 86400]", KeyUse::kUsed, "", 0,
     "A collective that takes longer fails and names the missing rank. The first call of a kind "
     "has this limit, the next two at least a minute; then it is learnt: five times the longest "
     "so far, but not under comm.timeout_min_s."},
    {"comm.timeout_min_s", KeyType::kNumber, "10", "(0, 86400]", KeyUse::kUsed, "", 0,
     "Least limit that is learnt: raise it where one rank alone may pause between collectives (a "
     "slow disk, an export on rank 0). comm.timeout_s or more: nothing is learnt."},
    {"comm.transport", KeyType::kString, "\"auto\"", "auto|shm|tcp|rdma|nccl", KeyUse::kRefused,
     "[\"auto\", \"shm\", \"tcp\", \"rdma\"]", 0,
     "How ranks exchange data. auto: shared memory inside a host, RoCE between hosts where every "
     "rank has an active port that reaches the others, else TCP. tcp: everywhere. rdma: an error "
     "where RoCE cannot be had."},
    {"comm.interface", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "Network device (\"eth0\") whose address the ranks' connections use. Empty: the one that "
     "reaches the launcher."},
    {"comm.tcp.connections", KeyType::kInteger, "1", "[1, 16]", KeyUse::kUsed, "", 0,
     "TCP connections for data between two ranks; long messages are cut over all of them. More "
     "than "
     "one pays where a network spreads connections over paths or drops packets."},
    {"comm.tcp.tls", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Encrypt what ranks of different hosts send each other (TLS 1.3 with keys that follow from "
     "the "
     "job's). comm.transport auto then means TCP between hosts, since RoCE cannot be encrypted; "
     "rdma "
     "is refused."},
    {"comm.rdma.device", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "RDMA device (\"mlx5_0\"). Empty: the one that holds the rank's address, else the first that "
     "is "
     "active."},
    {"comm.rdma.gid_index", KeyType::kInteger, "-1", "[-1, 255]", KeyUse::kUsed, "", 0,
     "GID of the port. -1: RoCE v2, the rank's own address first, IPv4 before IPv6."},
    {"comm.rdma.queue_pairs", KeyType::kInteger, "1", "[1, 8]", KeyUse::kUsed, "", 0,
     "Between two ranks; several spread over the paths of a network."},
    {"comm.rdma.traffic_class", KeyType::kInteger, "0", "[0, 255]", KeyUse::kUsed, "", 0,
     "Of the packets: DSCP x 4. Lossless networks often want 106 (DSCP 26)."},
    {"comm.rdma.service_level", KeyType::kInteger, "0", "[0, 7]", KeyUse::kUsed, "", 0,
     "The priority that flow control acts on where it follows the VLAN tag."},
    {"comm.rdma.timeout", KeyType::kInteger, "18", "[1, 31]", KeyUse::kUsed, "", 0,
     "4.096 us x 2^timeout without an answer, and a packet counts as lost. 18: 1.1 s."},
    {"comm.rdma.retries", KeyType::kInteger, "6", "[0, 7]", KeyUse::kUsed, "", 0,
     "Of a lost packet, then the peer counts as unreachable. 7 is for ever on soft-RoCE."},
    {"comm.rdma.direct_bytes_min", KeyType::kInteger, "131072", "[4096, inf)", KeyUse::kUsed, "", 0,
     "Messages from here on are written straight into the receiver's memory, where both ends can "
     "be "
     "registered; shorter ones are staged. Equal on all ranks."},
    {"comm.rdma.kept_bytes_max", KeyType::kInteger, "1073741824", "[0, inf)", KeyUse::kUsed, "", 0,
     "Of memory that nobody registered and that a rank keeps pinned because messages may use it "
     "again. 0: messages of such memory are staged."},
    {"comm.bucket_tuning", KeyType::kString, "\"auto\"", "auto|on|off", KeyUse::kUsed, "", 0,
     "Whether the first ten steps of a run may change the size of gradient buckets at stage 0, up "
     "to "
     "zero_optimization.reduce_bucket_size, by their measured times. auto: where messages leave "
     "the "
     "host. With deterministic: true no number depends on it; else a norm's last bits may. Needs "
     "zero_optimization.overlap_comm and no comm.compression."},
    {"comm.wire_dtype", KeyType::kString, "null", "fp32|bf16|fp16", KeyUse::kUsed, "", 0,
     "Element type of gradients on the way; sums are fp32. fp16 has 3 bits more than bf16, but a "
     "sum above 65,504 makes the step be skipped. Absent: communication_data_type, else fp32."},
    {"communication_data_type", KeyType::kString, "null", "fp32|bf16|bfp16|fp16", KeyUse::kUsed, "",
     0, "DeepSpeed's name for comm.wire_dtype (bfp16 is its spelling of bf16)."},
    {"comm.compression.type", KeyType::kString, "\"none\"", "none|powersgd|int8", KeyUse::kUsed, "",
     0,
     "How gradient buckets are compressed on the way. powersgd: low-rank factors (Vogels et al. "
     "2019). int8: blocks of 256 with a scale, all-to-all, as ZeRO++'s qgZ. Both change numbers: "
     "what is left out of a step is added to the next. That memory is not in checkpoints: it "
     "begins from zero after a resume. It takes 4 bytes a parameter and more, on a GPU of its "
     "memory. There powersgd's products are the GPU's: at stage 0 use it on GPUs of one model. At "
     "stages 0 and 1; above, zero_optimization.zero_quantized_gradients."},
    {"comm.compression.rank", KeyType::kInteger, "4", "[1, 64]", KeyUse::kUsed, "", 0,
     "Of powersgd's factors."},
    {"comm.compression.start_step", KeyType::kInteger, "100", "[0, inf)", KeyUse::kUsed, "", 0,
     "Steps at the start of a run that are not compressed."},
    {"comm.compression.min_elements", KeyType::kInteger, "65536", "[0, inf)", KeyUse::kUsed, "", 0,
     "Smaller buckets are not compressed."},
    {"comm.compression.error_feedback", KeyType::kBool, "true", "", KeyUse::kUsed, "", 0,
     "Off only to see what it is for: a run then loses what compression leaves out."},
    {"prescale_gradients", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Divide gradients by the number of ranks before they are summed, not after: against overflow "
     "of a 2-byte comm.wire_dtype."},
    {"gradient_predivide_factor", KeyType::kNumber, "1.0", "(0, inf)", KeyUse::kUsed, "", 0,
     "Divide gradients by this before they are summed; the sum is multiplied with it again."},
    {"sparse_gradients", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "Gradients are dense."},
    {"communication_timeout", KeyType::kNumber, "null", "", KeyUse::kIgnored, "", 0,
     "Use comm.timeout_s."},
};

}  // namespace

absl::Span<const ConfigKey> CommConfigKeys() { return kCommKeys; }

}  // namespace dtrain::plan
