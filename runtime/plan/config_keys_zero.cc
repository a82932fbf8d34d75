// The part of the table of keys that says what ranks share out and what is offloaded: ZeRO.
#include "runtime/plan/config_keys.h"

namespace dtrain::plan {
namespace {

// Sizes are elements.
constexpr ConfigKey kZeroKeys[] = {
    {"zero_optimization.stage", KeyType::kInteger, "0", "[0, 3]", KeyUse::kUsed, "", 0,
     "What ranks share out: 0 nothing, 1 the optimizer's moments, 2 gradients too, 3 weights too "
     "(gathered while operations read them)."},
    {"zero_optimization.reduce_bucket_size", KeyType::kInteger, "6553600", "[1, inf)",
     KeyUse::kUsed, "", kAutoAllowed,
     "Elements reduced in one call, and at stage 3 gathered, but for units that a program names. "
     "Default: 25 MiB of fp32, so that reduction overlaps backward (DeepSpeed: 5e8). \"auto\": "
     "model.hidden_size squared."},
    {"zero_optimization.overlap_comm", KeyType::kBool, "null", "", KeyUse::kUsed, "", 0,
     "Reduce while backward runs. Absent: true (DeepSpeed: at stage 3 only); numbers do not "
     "change."},
    {"zero_optimization.overlap_param_gather", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "Stages 0 to 2 on CPU ranks: a step ends before the updated weights are there. At stages 1 "
     "and 2 they are gathered during the next forward, in the order in which it reads them (the "
     "name is Megatron's). At stage 0 part of the gradients is gathered there, and the update of "
     "each bucket follows its gradients; not with LAMB, Muon, a program's own optimizer, "
     "comm.wire_dtype or comm.compression, with which the step stays whole. There "
     "comm.bucket_tuning has no effect. What reads a weight, operation or not, waits for its "
     "bucket. Numbers do not change, but that sums of stage 0 may be in another order where they "
     "are not deterministic. Off by default because a system call that is handed such a weight "
     "(write, send, a collective of the program's own) fails with EFAULT: make it inside "
     "Engine::WithParameters."},
    {"zero_optimization.allgather_bucket_size", KeyType::kInteger, "500000000", "[1, inf)",
     KeyUse::kIgnored, "", 0, "Of stages 1 and 2."},
    {"zero_optimization.contiguous_gradients", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Chooses an implementation; gradients are always flat."},
    {"zero_optimization.reduce_scatter", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Chooses an implementation; gradients are always flat."},
    {"zero_optimization.allgather_partitions", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Chooses an implementation; gradients are always flat."},
    {"zero_optimization.use_multi_rank_bucket_allreduce", KeyType::kBool, "true", "",
     KeyUse::kIgnored, "", 0, "Chooses an implementation; gradients are always flat."},
    {"zero_optimization.round_robin_gradients", KeyType::kBool, "false", "", KeyUse::kIgnored, "",
     0, "Without effect here."},
    {"zero_optimization.legacy_stage1", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"zero_optimization.ignore_unused_parameters", KeyType::kBool, "true", "", KeyUse::kIgnored, "",
     0, "Unused parameters are always allowed."},
    {"zero_optimization.elastic_checkpoint", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"zero_optimization.load_from_fp32_weights", KeyType::kBool, "true", "", KeyUse::kIgnored, "",
     0, "Without effect here."},
    {"zero_optimization.log_trace_cache_warnings", KeyType::kBool, "false", "", KeyUse::kIgnored,
     "", 0, "Without effect here."},
    {"zero_optimization.override_module_apply", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"zero_optimization.sub_group_size", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kIgnored, "", 0, "The update goes through a rank's part bucket by bucket."},
    {"zero_optimization.stage3_max_live_parameters", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kUsed, "", 0,
     "Stage 3: elements of gathered weights on a rank at a time; what is needed last is released "
     "first. What one operation reads is gathered whatever the limit."},
    {"zero_optimization.stage3_max_reuse_distance", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kUsed, "", 0,
     "Stage 3: weights that are read again only after so many elements of others are released at "
     "once."},
    {"zero_optimization.stage3_prefetch_bucket_size", KeyType::kInteger, "50000000", "[0, inf)",
     KeyUse::kUsed, "", kAutoAllowed,
     "Stage 3: elements of weights gathered ahead, in the order of the step before; of units that "
     "a program names the next one at least. 0: on demand. "
     "\"auto\": 0.9 x model.hidden_size squared at stage 3, else the default."},
    {"zero_optimization.stage3_param_persistence_threshold", KeyType::kInteger, "100000",
     "[0, inf)", KeyUse::kUsed, "", kAutoAllowed,
     "Stage 3: parameters of at most so many elements stay whole on every rank and are brought up "
     "to date once a step, all together. 0: none. \"auto\": 10 x model.hidden_size at stage 3, "
     "else the default."},
    {"zero_optimization.stage3_model_persistence_threshold", KeyType::kInteger,
     "9223372036854775807", "[0, inf)", KeyUse::kUsed, "", 0,
     "Stage 3: most elements of all such parameters together, in the order in which the module "
     "registers them."},
    {"zero_optimization.stage3_module_granularity_threshold", KeyType::kInteger, "0", "[0, inf)",
     KeyUse::kIgnored, "", 0,
     "Neighbours are gathered together, by buckets; a program names its own units with "
     "EngineOptions::units."},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Checkpoints always hold whole weights."},
    {"zero_optimization.zero_hpz_partition_size", KeyType::kInteger, "1", "[1, 65536]",
     KeyUse::kUsed, "", 0,
     "Stage 3: neighbouring ranks that keep gathered weights shared out among them, so that a "
     "step's later gathers stay inside (ZeRO++'s hpZ; best: ranks of a node). It must divide the "
     "world size. 1: off."},
    {"zero_optimization.zero_quantized_weights", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     kIdentity,
     "Stage 3: weights are gathered as int8 blocks of 256 with a scale (ZeRO++'s qwZ), with "
     "zero_hpz_partition_size too. Changes numbers: forward and backward compute with the rounded "
     "weights. Updates, checkpoints and WithParameters have the exact ones, and so have parameters "
     "below stage3_param_persistence_threshold."},
    {"zero_optimization.zero_quantized_nontrainable_weights", KeyType::kBool, "false", "",
     KeyUse::kRefused, "[false]", 0,
     "Frozen parameters are kept in the weights' type; with zero_quantized_weights they are "
     "gathered "
     "as int8 blocks as the others are."},
    {"zero_optimization.zero_quantized_gradients", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     kIdentity,
     "Stages 2 and 3: gradients travel as int8 blocks of 256 with a scale, all to all, and are "
     "summed in fp32 in rank order (ZeRO++'s qgZ). Changes numbers: what is rounded away is lost, "
     "other than with comm.compression at stages 0 and 1; comm.wire_dtype is without effect."},
    {"zero_optimization.mics_shard_size", KeyType::kInteger, "-1", "[-1, inf)", KeyUse::kRefused,
     "[-1]", 0,
     "States are shared out over all ranks, which takes least memory; "
     "zero_hpz_partition_size keeps a step's later gathers of weights inside small groups."},
    {"zero_optimization.mics_hierarchical_params_gather", KeyType::kBool, "false", "",
     KeyUse::kRefused, "[false]", 0,
     "Gathers between nodes are hierarchical by themselves; see zero_hpz_partition_size."},
    {"zero_optimization.offload_optimizer.device", KeyType::kString, "\"none\"", "none|cpu|nvme",
     KeyUse::kUsed, "", 0,
     "Where optimizer states and fp32 masters live: beside the weights, in a second buffer of the "
     "host's memory, or in a file. They are streamed through a few buffers while others are "
     "updated; numbers do not change. From stage 1 on. On a GPU: in pinned "
     "memory of the host (cpu) or a file (nvme); the host updates, and gradients and new weights "
     "travel through pinned buffers. A program's own optimizer does so unasked."},
    {"zero_optimization.offload_optimizer.nvme_path", KeyType::kString, "null", "", KeyUse::kUsed,
     "", 0,
     "Folder on a fast local disk, for device nvme. The file has no name: nothing is left of it."},
    {"zero_optimization.offload_optimizer.buffer_count", KeyType::kInteger, "4", "[2, 1024]",
     KeyUse::kUsed, "", 0,
     "Buffers that states are streamed through; on a GPU also pinned ones of gradients and "
     "weights, at least 3."},
    {"zero_optimization.offload_optimizer.pin_memory", KeyType::kBool, "true", "", KeyUse::kIgnored,
     "", 0, "What a GPU copies to and from is pinned always."},
    {"zero_optimization.offload_optimizer.pipeline_read", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Reads always overlap with the update."},
    {"zero_optimization.offload_optimizer.pipeline_write", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Writes always overlap with the update."},
    {"zero_optimization.offload_optimizer.fast_init", KeyType::kBool, "false", "", KeyUse::kIgnored,
     "", 0, "Without effect here."},
    {"zero_optimization.offload_optimizer.ratio", KeyType::kNumber, "1.0", "[0, 1]", KeyUse::kUsed,
     "", 0,
     "Share of a rank's states that is offloaded; the first part stays near. Numbers do not "
     "change. On a GPU: the share in the file with nvme, the first part is in the host's memory; "
     "without effect with cpu."},
    {"zero_optimization.offload_param.device", KeyType::kString, "\"none\"", "none|cpu|nvme",
     KeyUse::kUsed, "", 0,
     "Where a rank keeps its share of the weights at stage 3. cpu: a host buffer of its own, on a "
     "GPU pinned, from which gathers take it, and to which a GPU's optimizer writes; nvme: a file "
     "in nvme_path, which the page cache serves. Same bits."},
    {"zero_optimization.offload_param.nvme_path", KeyType::kString, "null", "", KeyUse::kUsed, "",
     0, "A folder on a local disk."},
    {"zero_optimization.offload_param.buffer_count", KeyType::kInteger, "5", "[1, inf)",
     KeyUse::kIgnored, "", 0, "Gathers read the file through the page cache."},
    {"zero_optimization.offload_param.buffer_size", KeyType::kInteger, "100000000", "[1, inf)",
     KeyUse::kIgnored, "", 0, "Gathers read the file through the page cache."},
    {"zero_optimization.offload_param.max_in_cpu", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kIgnored, "", 0, "Gathers read the file through the page cache."},
    {"zero_optimization.offload_param.pin_memory", KeyType::kBool, "true", "", KeyUse::kIgnored, "",
     0, "Of offload."},
};

}  // namespace

absl::Span<const ConfigKey> ZeroConfigKeys() { return kZeroKeys; }

}  // namespace dtrain::plan
