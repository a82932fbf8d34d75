// The keys of the table that say how ranks exchange data.
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr ConfigKey kCommKeys[] = {
    {"comm.timeout_s", KeyType::kNumber, "600", "(0, 86400]", KeyUse::kUsed, "", 0,
     "Time limit of a collective operation, in seconds. When it passes, the step fails and the "
     "error names the missing rank. The first call of a collective gets this limit, and the next "
     "two calls get at least a minute. Later calls get five times the longest time so far, but at "
     "least comm.timeout_min_s."},
    {"comm.timeout_min_s", KeyType::kNumber, "null", "(0, 86400]", KeyUse::kUsed, "", 0,
     "Smallest limit that dtrain sets by itself, in seconds. If it is not set, it is 10; for ranks "
     "on GPUs, and over RDMA between hosts, at least 60. It is longer if the network card may need "
     "more time to report a link that is down: 4 x 4.096 us x 2^comm.rdma.timeout x (1 + "
     "comm.rdma.retries), and for NCCL between hosts the same with NCCL_IB_TIMEOUT and "
     "NCCL_IB_RETRY_CNT (137 s with NCCL's defaults). Raise it if one rank may pause between "
     "collectives, for example for a slow disk or an export on rank 0. If it is at least "
     "comm.timeout_s, every call gets comm.timeout_s."},
    {"comm.hang_timeout_s", KeyType::kNumber, "null", "[0, 86400]", KeyUse::kUsed, "", 0,
     "Time without progress after which dtrain launch says which rank hangs, and ends the attempt "
     "with exit code 75. If it is not set, it is five times the 99th percentile of the steps' "
     "times, and at least 1 second, from the tenth step on; a pause of the program between steps, "
     "of a disk or of the network may take comm.timeout_min_s, and a start, a save or an "
     "evaluation comm.timeout_s. On a GPU a step too may take comm.timeout_min_s. 0 turns the "
     "detection off."},
    {"comm.hang_data_timeout_s", KeyType::kNumber, "null", "(0, 86400]", KeyUse::kUsed, "", 0,
     "Time that a rank may wait for its data source in a step before dtrain launch says that it "
     "hangs, from the first step on. If it is not set, the limit is that of the other parts of a "
     "step (comm.hang_timeout_s). Set it if the source may wait for a network. The other ranks "
     "wait in a collective meanwhile, so comm.timeout_min_s has to be longer."},
    {"comm.transport", KeyType::kString, "\"auto\"", "auto|shm|tcp|rdma|nccl", KeyUse::kRefused,
     "[\"auto\", \"shm\", \"tcp\", \"rdma\"]", 0,
     "Chooses how ranks exchange data in host memory. auto: shared memory inside a host; between "
     "hosts RDMA (RoCE v2 or InfiniBand) if every rank has an active port that reaches the others, "
     "otherwise TCP. shm: shared memory inside a host and TCP between hosts. tcp: TCP everywhere. "
     "rdma: shared memory inside a host and RDMA between hosts, or an error if RDMA does not work. "
     "nccl is refused: ranks on GPUs use NCCL without being told."},
    {"comm.interface", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "Network device for the connections between ranks, for example \"eth0\". If it is empty, "
     "dtrain takes the device that reaches the launcher. NCCL uses it too, unless "
     "NCCL_SOCKET_IFNAME is set."},
    {"comm.tcp.connections", KeyType::kInteger, "1", "[1, 16]", KeyUse::kUsed, "", 0,
     "TCP connections between each pair of ranks. Long messages are split over all of them. Use "
     "several if the network balances connections over several paths or loses packets."},
    {"comm.tcp.tls", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Encrypts the data between ranks of different hosts with TLS 1.3, with keys derived from the "
     "job's key. RDMA cannot be encrypted: with comm.transport auto, hosts then use TCP, and rdma "
     "is refused."},
    {"comm.rdma.device", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "RDMA device, for example \"mlx5_0\". If it is empty, each rank takes the device nearest to "
     "its GPU and cores (DTRAIN_RDMA_DEVICE, which dtrain launch sets), unless comm.interface is "
     "set. If there is none, or if these devices do not reach each other, it takes the device that "
     "holds the rank's address, otherwise the first active one. If it is set, NCCL uses only this "
     "device. NCCL also gets gid_index, queue_pairs, traffic_class, service_level, timeout and "
     "retries through its environment variables, if they are set here and those variables are "
     "not."},
    {"comm.rdma.gid_index", KeyType::kInteger, "-1", "[-1, 255]", KeyUse::kUsed, "", 0,
     "Index of the port's GID. -1 chooses a GID of RoCE v2: the one of the rank's own address if "
     "there is one, otherwise IPv4 before IPv6. On InfiniBand it chooses the first."},
    {"comm.rdma.queue_pairs", KeyType::kInteger, "1", "[1, 8]", KeyUse::kUsed, "", 0,
     "Queue pairs between each pair of ranks. Several queue pairs use several paths of the "
     "network."},
    {"comm.rdma.traffic_class", KeyType::kInteger, "0", "[0, 255]", KeyUse::kUsed, "", 0,
     "Traffic class of the packets, which is the DSCP value times 4. Lossless networks often "
     "expect 106 (DSCP 26)."},
    {"comm.rdma.service_level", KeyType::kInteger, "0", "[0, 7]", KeyUse::kUsed, "", 0,
     "Service level (priority) of the packets. It matters in networks whose flow control uses the "
     "VLAN tag."},
    {"comm.rdma.timeout", KeyType::kInteger, "18", "[1, 31]", KeyUse::kUsed, "", 0,
     "Time before an unanswered packet counts as lost: 4.096 us times 2 to this power. The "
     "default, 18, means 1.1 s."},
    {"comm.rdma.retries", KeyType::kInteger, "6", "[0, 7]", KeyUse::kUsed, "", 0,
     "Number of times that a lost packet is sent again before the peer counts as unreachable. On "
     "soft-RoCE, 7 means forever."},
    {"comm.rdma.direct_bytes_min", KeyType::kInteger, "131072", "[4096, inf)", KeyUse::kUsed, "", 0,
     "Messages of at least this many bytes are written directly into the receiver's memory, if "
     "both sides can register their memory. Shorter messages are copied through a buffer. The "
     "value must be the same on all ranks."},
    {"comm.rdma.kept_bytes_max", KeyType::kInteger, "1073741824", "[0, inf)", KeyUse::kUsed, "", 0,
     "Largest number of bytes of user memory that a rank keeps registered (and so pinned) for "
     "later messages. 0 copies all messages from such memory through a buffer."},
    {"comm.bucket_tuning", KeyType::kString, "\"auto\"", "auto|on|off", KeyUse::kUsed, "", 0,
     "Chooses whether dtrain measures the first ten steps at stage 0 and chooses the size of "
     "gradient buckets from them, up to zero_optimization.reduce_bucket_size. auto: only if "
     "messages leave the host. If deterministic is true, results do not depend on the choice; "
     "otherwise the last bits of the gradient norm may depend on it. It needs "
     "zero_optimization.overlap_comm and does not work with comm.compression."},
    {"comm.wire_dtype", KeyType::kString, "null", "fp32|bf16|fp16", KeyUse::kUsed, "", 0,
     "Type in which gradients are sent. Sums are always fp32. fp16 has 3 more bits of precision "
     "than bf16, but a step is skipped if a sum is above 65,504. If it is not set, it is "
     "communication_data_type, or fp32 if that is not set either."},
    {"communication_data_type", KeyType::kString, "null", "fp32|bf16|bfp16|fp16", KeyUse::kUsed, "",
     0, "DeepSpeed's name for comm.wire_dtype. bfp16 is DeepSpeed's spelling of bf16."},
    {"comm.compression.type", KeyType::kString, "\"none\"", "none|powersgd|int8", KeyUse::kUsed, "",
     0,
     "Compresses gradient buckets before they are sent, at stages 0 and 1. powersgd: low-rank "
     "factors (Vogels et al. 2019). int8: blocks of 256 elements with one scale, exchanged "
     "all-to-all, as qgZ of ZeRO++. Both change results: what one step does not send is added to "
     "the next step. This remainder takes at least 4 bytes for each parameter, in GPU memory if "
     "the rank trains on a GPU. It is not saved in checkpoints, so it starts at zero after a "
     "resume. Use powersgd at stage 0 only on GPUs of the same model. At stages 2 and 3, set "
     "zero_optimization.zero_quantized_gradients instead."},
    {"comm.compression.rank", KeyType::kInteger, "4", "[1, 64]", KeyUse::kUsed, "", 0,
     "Rank of powersgd's factors. A higher rank sends more data and loses less."},
    {"comm.compression.start_step", KeyType::kInteger, "100", "[0, inf)", KeyUse::kUsed, "", 0,
     "Number of steps at the start of the run that are not compressed."},
    {"comm.compression.min_elements", KeyType::kInteger, "65536", "[0, inf)", KeyUse::kUsed, "", 0,
     "Buckets with fewer elements are not compressed."},
    {"comm.compression.error_feedback", KeyType::kBool, "true", "", KeyUse::kUsed, "", 0,
     "Adds what compression left out of one step to the next step. Turn it off only to measure its "
     "effect, because a run without it loses these parts of the gradient."},
    {"prescale_gradients", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Divides gradients by the number of ranks before the sum instead of after it. Use it against "
     "overflow with a 2-byte comm.wire_dtype."},
    {"gradient_predivide_factor", KeyType::kNumber, "1.0", "(0, inf)", KeyUse::kUsed, "", 0,
     "Divides gradients by this number before the sum and multiplies the sum by it. Use it against "
     "overflow with a 2-byte comm.wire_dtype. It cannot be combined with prescale_gradients."},
    {"sparse_gradients", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "Gradients are always dense."},
    {"communication_timeout", KeyType::kNumber, "null", "", KeyUse::kIgnored, "", 0,
     "Set comm.timeout_s instead."},
};

}  // namespace

absl::Span<const ConfigKey> CommConfigKeys() { return kCommKeys; }

}  // namespace dtrain::plan
