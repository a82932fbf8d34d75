// The keys of the table for ZeRO: what is divided among the ranks, and what is offloaded.
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

// Sizes are elements.
constexpr ConfigKey kZeroKeys[] = {
    {"zero_optimization.stage", KeyType::kInteger, "0", "[0, 3]", KeyUse::kUsed, "", 0,
     "Chooses what is divided among the ranks, so that no rank stores all of it. 0: nothing. 1: "
     "optimizer states. 2: also gradients. 3: also weights, which are gathered when an operation "
     "reads them."},
    {"zero_optimization.reduce_bucket_size", KeyType::kInteger, "6553600", "[1, inf)",
     KeyUse::kUsed, "", kAutoAllowed,
     "Largest number of elements that one call reduces and, at stage 3, gathers. Units that the "
     "program names (EngineOptions::units) may be larger. The default is 25 MiB of fp32, small "
     "enough to overlap with backward; DeepSpeed's is 5e8. \"auto\" takes the square of the "
     "model's hidden size (model.hidden_size, or what the file under model.config or "
     "model.pretrained says), and the default if it is not known."},
    {"zero_optimization.overlap_comm", KeyType::kBool, "null", "", KeyUse::kUsed, "", 0,
     "Reduces gradients while backward still runs. If it is not set, it is true (in DeepSpeed, "
     "only at stage 3). Results do not change."},
    {"zero_optimization.overlap_param_gather", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Weights of stages 1 and 2 are gathered at the end of a step."},
    {"zero_optimization.allgather_bucket_size", KeyType::kInteger, "500000000", "[1, inf)",
     KeyUse::kIgnored, "", 0, "Gathers use the buckets of reduce_bucket_size."},
    {"zero_optimization.contiguous_gradients", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Gradients are always stored in one flat buffer."},
    {"zero_optimization.reduce_scatter", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Stages 1 to 3 always reduce-scatter gradients."},
    {"zero_optimization.allgather_partitions", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Stages 1 and 2 always all-gather the updated weights."},
    {"zero_optimization.use_multi_rank_bucket_allreduce", KeyType::kBool, "true", "",
     KeyUse::kIgnored, "", 0, "Gradients are always stored in one flat buffer."},
    {"zero_optimization.round_robin_gradients", KeyType::kBool, "false", "", KeyUse::kIgnored, "",
     0, "Every bucket is divided equally among the ranks."},
    {"zero_optimization.legacy_stage1", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain has one implementation of stage 1."},
    {"zero_optimization.ignore_unused_parameters", KeyType::kBool, "true", "", KeyUse::kIgnored, "",
     0, "Unused parameters are always allowed."},
    {"zero_optimization.elastic_checkpoint", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Every checkpoint can be resumed on another number of ranks."},
    {"zero_optimization.load_from_fp32_weights", KeyType::kBool, "true", "", KeyUse::kIgnored, "",
     0, "A resume always loads the fp32 master weights."},
    {"zero_optimization.log_trace_cache_warnings", KeyType::kBool, "false", "", KeyUse::kIgnored,
     "", 0, "dtrain has no trace cache to warn about."},
    {"zero_optimization.override_module_apply", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "It concerns PyTorch modules in Python."},
    {"zero_optimization.sub_group_size", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kIgnored, "", 0, "The update goes through the rank's part one bucket at a time."},
    {"zero_optimization.stage3_max_live_parameters", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kUsed, "", 0,
     "Stage 3: largest number of elements of gathered weights that a rank holds at a time. Weights "
     "that are needed last are released first. The weights of one operation are gathered even if "
     "they exceed the limit."},
    {"zero_optimization.stage3_max_reuse_distance", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kUsed, "", 0,
     "Stage 3: releases a weight right after it is read, if more than this many elements of other "
     "weights come before its next read."},
    {"zero_optimization.stage3_prefetch_bucket_size", KeyType::kInteger, "50000000", "[0, inf)",
     KeyUse::kUsed, "", kAutoAllowed,
     "Stage 3: number of elements of weights that are gathered ahead, in the order in which the "
     "previous step read them. If the program names units, at least the next unit is gathered "
     "ahead. 0 gathers weights only when they are read. \"auto\" takes 0.9 times the square of the "
     "model's hidden size at stage 3, and the default at other stages or if the size is not "
     "known."},
    {"zero_optimization.stage3_param_persistence_threshold", KeyType::kInteger, "100000",
     "[0, inf)", KeyUse::kUsed, "", kAutoAllowed,
     "Stage 3: parameters with at most this many elements stay whole on every rank. They are all "
     "updated together once a step. 0 divides all parameters. \"auto\" takes 10 times the model's "
     "hidden size at stage 3, and the default at other stages or if the size is not known."},
    {"zero_optimization.stage3_model_persistence_threshold", KeyType::kInteger,
     "9223372036854775807", "[0, inf)", KeyUse::kUsed, "", 0,
     "Stage 3: largest total number of elements in parameters that stay whole. Parameters are "
     "counted in the order in which the module registers them."},
    {"zero_optimization.stage3_module_granularity_threshold", KeyType::kInteger, "0", "[0, inf)",
     KeyUse::kIgnored, "", 0,
     "Neighbouring parameters are gathered together in buckets. Set leaf_module or "
     "EngineOptions::units to name what is gathered together."},
    {"zero_optimization.leaf_module.classes", KeyType::kStringList,
     "[\"transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock\", "
     "\"transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock\", "
     "\"transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock\"]",
     "", KeyUse::kUsed, "", 0,
     "Stage 3: makes each module of these classes a unit, as EngineOptions::units does: every rank "
     "gathers and reduces its weights as a whole, even if ranks use different parts of it, as they "
     "do in a mixture of experts. The weights of one are gathered together even if they exceed "
     "stage3_max_live_parameters. The name of a C++ class is compared without namespaces and "
     "without a final Impl; if the value has a namespace (::), that is compared too. Only the "
     "last word of a Python class's name is compared. A class that an engine's model does not have "
     "is an error, unless it is one of the default. In a program with several engines, set "
     "EngineOptions::units for each instead."},
    {"zero_optimization.leaf_module.names", KeyType::kStringList, "[]", "", KeyUse::kUsed, "", 0,
     "Stage 3: names of modules that are made units as in leaf_module.classes. The names are those "
     "of torch::nn::Module::named_modules. A name that the model does not have is an error."},
    {"zero_optimization.leaf_module.name_suffixes", KeyType::kStringList, "[]", "", KeyUse::kUsed,
     "", 0,
     "Stage 3: makes each module whose name ends with one of these a unit, as in "
     "leaf_module.classes. A suffix that fits no module is an error."},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Checkpoints always hold whole weights."},
    {"zero_optimization.zero_hpz_partition_size", KeyType::kInteger, "1", "[1, 65536]",
     KeyUse::kUsed, "", 0,
     "Stage 3: number of neighbouring ranks in a group that keeps a copy of the gathered weights, "
     "divided among its ranks. Later gathers of the step then stay inside the group (hpZ of "
     "ZeRO++). Set it to the number of ranks on a node. It must divide the world size. 1 turns it "
     "off."},
    {"zero_optimization.zero_quantized_weights", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     kIdentity,
     "Stage 3: gathers weights as int8, in blocks of 256 elements with one scale (qwZ of ZeRO++). "
     "It can be combined with zero_hpz_partition_size. Results change, because forward and "
     "backward use rounded weights. Updates, checkpoints, WithParameters and parameters below "
     "stage3_param_persistence_threshold use exact weights."},
    {"zero_optimization.zero_quantized_nontrainable_weights", KeyType::kBool, "false", "",
     KeyUse::kRefused, "[false]", 0,
     "Frozen parameters keep the type of the weights. With zero_quantized_weights they are "
     "gathered as int8 too."},
    {"zero_optimization.zero_quantized_gradients", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     kIdentity,
     "Stages 2 and 3: sends gradients as int8, in blocks of 256 elements with one scale, and sums "
     "them in fp32 in the order of the ranks (qgZ of ZeRO++). Results change, because what is "
     "rounded away is lost; comm.compression adds it to the next step instead. comm.wire_dtype has "
     "no effect with it."},
    {"zero_optimization.mics_shard_size", KeyType::kInteger, "-1", "[-1, inf)", KeyUse::kRefused,
     "[-1]", 0,
     "dtrain divides states among all ranks, which takes the least memory. To keep later gathers "
     "of a step inside small groups, set zero_hpz_partition_size."},
    {"zero_optimization.mics_hierarchical_params_gather", KeyType::kBool, "false", "",
     KeyUse::kRefused, "[false]", 0,
     "dtrain gathers hierarchically between nodes by itself. See zero_hpz_partition_size."},
    {"zero_optimization.offload_optimizer.device", KeyType::kString, "\"none\"", "none|cpu|nvme",
     KeyUse::kUsed, "", 0,
     "Chooses where optimizer states and fp32 master weights are stored, from stage 1 on. none: "
     "beside the weights. cpu: in a second buffer of host memory (pinned if the rank trains on a "
     "GPU). nvme: in a file in nvme_path. Offloaded states stream through a few buffers during the "
     "update. Results do not change. If the rank trains on a GPU, the host computes the update, "
     "and gradients and new weights go through pinned buffers. A program's own optimizer always "
     "updates on the host."},
    {"zero_optimization.offload_optimizer.nvme_path", KeyType::kString, "null", "", KeyUse::kUsed,
     "", 0,
     "Folder on a fast local disk, required for device nvme. The file has no name, so nothing "
     "stays behind when the run ends."},
    {"zero_optimization.offload_optimizer.buffer_count", KeyType::kInteger, "4", "[2, 1024]",
     KeyUse::kUsed, "", 0,
     "Number of buffers that states stream through. If the rank trains on a GPU, gradients and "
     "weights use as many pinned buffers, at least 3."},
    {"zero_optimization.offload_optimizer.pin_memory", KeyType::kBool, "true", "", KeyUse::kIgnored,
     "", 0, "Memory that a GPU copies from or to is always pinned."},
    {"zero_optimization.offload_optimizer.pipeline_read", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Reads always overlap with the update."},
    {"zero_optimization.offload_optimizer.pipeline_write", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Writes always overlap with the update."},
    {"zero_optimization.offload_optimizer.fast_init", KeyType::kBool, "false", "", KeyUse::kIgnored,
     "", 0, "It chooses between implementations in DeepSpeed."},
    {"zero_optimization.offload_optimizer.ratio", KeyType::kNumber, "1.0", "[0, 1]", KeyUse::kUsed,
     "", 0,
     "Share of a rank's states that is offloaded; the other states stay beside the weights. "
     "Results do not change. If the rank trains on a GPU, device nvme puts this share into the "
     "file and the other states into host memory; with device cpu this key has no effect."},
    {"zero_optimization.offload_param.device", KeyType::kString, "\"none\"", "none|cpu|nvme",
     KeyUse::kUsed, "", 0,
     "Stage 3: where a rank stores its part of the weights. none: with the other tensors. cpu: in "
     "a separate buffer of host memory (pinned if the rank trains on a GPU). nvme: in a file in "
     "nvme_path, which is read through the page cache. Results do not change."},
    {"zero_optimization.offload_param.nvme_path", KeyType::kString, "null", "", KeyUse::kUsed, "",
     0, "Folder on a local disk, required for device nvme."},
    {"zero_optimization.offload_param.buffer_count", KeyType::kInteger, "5", "[1, inf)",
     KeyUse::kIgnored, "", 0, "Gathers read the file through the page cache."},
    {"zero_optimization.offload_param.buffer_size", KeyType::kInteger, "100000000", "[1, inf)",
     KeyUse::kIgnored, "", 0, "Gathers read the file through the page cache."},
    {"zero_optimization.offload_param.max_in_cpu", KeyType::kInteger, "1000000000", "[0, inf)",
     KeyUse::kIgnored, "", 0, "Gathers read the file through the page cache."},
    {"zero_optimization.offload_param.pin_memory", KeyType::kBool, "true", "", KeyUse::kIgnored, "",
     0, "Offloaded weights of a rank on a GPU are always in pinned memory."},
};

}  // namespace

absl::Span<const ConfigKey> ZeroConfigKeys() { return kZeroKeys; }

}  // namespace dtrain::plan
