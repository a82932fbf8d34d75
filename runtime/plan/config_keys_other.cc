// The part of the table of keys that says what is recorded, with the sections of DeepSpeed that
// have no other place, and the user's part.
#include "runtime/plan/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr ConfigKey kKeys[] = {
    // Metrics.
    {"metrics.interval", KeyType::kInteger, "10", "[1, inf)", KeyUse::kUsed, "", 0,
     "Steps between two progress lines on the console; the first and the last step have one too. "
     "Every step is recorded."},
    {"metrics.console", KeyType::kStringList,
     R"(["loss","rate","eta","lr","grad_norm","mfu","exposed_comm"])", "", KeyUse::kUsed, "", 0,
     "Columns of the progress line behind the step, the most important first: a narrow terminal "
     "leaves out the last ones. Besides those of the default there are gemm_fraction, step_time, "
     "loss_scale and memory, and every metric by its full name (time/data_s, eval/loss), the "
     "program's own included. A column without a value is left out; mfu is the GEMM fraction where "
     "the device's peak is not known."},
    {"metrics.tensorboard", KeyType::kBool, "true", "", KeyUse::kUsed, "", 0,
     "Whether the launcher writes TensorBoard event files."},
    {"metrics.trace_steps", KeyType::kInteger, "0", "[0, 1000]", KeyUse::kUsed, "", 0,
     "Steps recorded as a Chrome trace on every rank, in trace/ of the run directory: operations, "
     "dtrain's phases (rank-R.json) and memory by category (rank-R-memory.json). 0: none."},
    {"metrics.trace_first_step", KeyType::kInteger, "3", "[1, inf)", KeyUse::kUsed, "", 0,
     "The first step of metrics.trace_steps."},
    {"steps_per_print", KeyType::kInteger, "10", "[1, inf)", KeyUse::kIgnored, "", 0,
     "Use metrics.interval."},
    {"wall_clock_breakdown", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Times of a step are always recorded."},
    {"memory_breakdown", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"dump_state", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0, "Without effect here."},
    {"disable_allgather", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"dataloader_drop_last", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Nothing is dropped: a batch may span two epochs."},
    {"zero_allow_untested_optimizer", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"use_data_before_expert_parallelism", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"timers_barrier", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"zero_force_ds_cpu_optimizer", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"graph_harvesting", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Without effect here."},
    {"tensorboard.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Use metrics.tensorboard."},
    {"tensorboard.output_path", KeyType::kString, "\"\"", "", KeyUse::kIgnored, "", 0,
     "The run directory holds all output."},
    {"tensorboard.job_name", KeyType::kString, "\"DeepSpeedJobName\"", "", KeyUse::kIgnored, "", 0,
     "The run directory holds all output."},
    {"csv_monitor.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Metrics are always in metrics/rank-0.jsonl."},
    {"csv_monitor.output_path", KeyType::kString, "\"\"", "", KeyUse::kIgnored, "", 0,
     "The run directory holds all output."},
    {"csv_monitor.job_name", KeyType::kString, "\"DeepSpeedJobName\"", "", KeyUse::kIgnored, "", 0,
     "The run directory holds all output."},
    {"wandb.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Run wandb sync on the TensorBoard files."},
    {"wandb.group", KeyType::kString, "null", "", KeyUse::kIgnored, "", 0, "Of wandb."},
    {"wandb.team", KeyType::kString, "null", "", KeyUse::kIgnored, "", 0, "Of wandb."},
    {"wandb.project", KeyType::kString, "\"deepspeed\"", "", KeyUse::kIgnored, "", 0, "Of wandb."},
    {"comms_logger.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The flight recorder keeps the last collectives."},
    {"comms_logger.verbose", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The flight recorder keeps the last collectives."},
    {"comms_logger.prof_all", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "The flight recorder keeps the last collectives."},
    {"comms_logger.debug", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The flight recorder keeps the last collectives."},
    {"comms_logger.prof_ops", KeyType::kStringList, "[]", "", KeyUse::kIgnored, "", 0,
     "The flight recorder keeps the last collectives."},
    {"flops_profiler.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Model FLOP/s are always recorded."},
    {"flops_profiler.recompute_fwd_factor", KeyType::kNumber, "0", "", KeyUse::kIgnored, "", 0,
     "Model FLOP/s are always recorded."},
    {"flops_profiler.profile_step", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "Model FLOP/s are always recorded."},
    {"flops_profiler.module_depth", KeyType::kInteger, "-1", "", KeyUse::kIgnored, "", 0,
     "Model FLOP/s are always recorded."},
    {"flops_profiler.top_modules", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "Model FLOP/s are always recorded."},
    {"flops_profiler.detailed", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Model FLOP/s are always recorded."},
    {"flops_profiler.output_file", KeyType::kString, "null", "", KeyUse::kIgnored, "", 0,
     "Model FLOP/s are always recorded."},
    // Other sections of DeepSpeed.
    {"activation_checkpointing.mode", KeyType::kString, "\"none\"", "none|full|selective",
     KeyUse::kUsed, "", 0,
     "What backward computes again instead of keeping it: whole layers (full), or of each layer "
     "what is cheap to compute and large to keep (selective; the example's MLP). Same bits. For "
     "models that call dtrain::Recompute, as the example does."},
    {"activation_checkpointing.every", KeyType::kInteger, "1", "[1, inf)", KeyUse::kUsed, "", 0,
     "The mode is for every so manieth layer, from the first on."},
    {"activation_checkpointing.cpu_checkpointing", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     0,
     "What a recomputed segment keeps of forward, its inputs, waits for backward in a second "
     "buffer of the host's memory, on a GPU page-locked: written behind forward, read ahead of "
     "backward. Same bits. Of what the model hands to dtrain::Recompute, by mode or on its own."},
    {"activation_checkpointing.nvme_path", KeyType::kString, "null", "", KeyUse::kUsed, "", 0,
     "The same in a file: a folder on a fast local disk. The file grows in the first step to what "
     "a "
     "forward keeps; it has no name: nothing is left of it. Not with cpu_checkpointing, and not on "
     "a GPU."},
    {"activation_checkpointing.synchronize_checkpoint_boundary", KeyType::kBool, "false", "",
     KeyUse::kUsed, "", 0,
     "With cpu_checkpointing or nvme_path: forward (on a GPU the device's, not the host's) goes on "
     "when a segment's inputs are written. Least memory, and to see what the tier costs."},
    {"activation_checkpointing.partition_activations", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0,
     "Shares a saved input out over the ranks of tensor parallelism, of which there is one."},
    {"activation_checkpointing.number_checkpoints", KeyType::kInteger, "null", "[1, inf)",
     KeyUse::kIgnored, "", 0,
     "Sizes DeepSpeed's buffer; the far tier here grows to what is kept. Which layers are "
     "recomputed: mode and every."},
    {"activation_checkpointing.contiguous_memory_optimization", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Chooses an implementation; each input is kept in one piece."},
    {"activation_checkpointing.profile", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Times of recomputing and of waiting for the far tier are always recorded "
     "(time/recompute_s, time/activation_wait_s)."},
    {"elasticity.enabled", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "The batch is set by train_batch_size and kept when the world size changes."},
    {"elasticity.max_train_batch_size", KeyType::kInteger, "2000", "", KeyUse::kIgnored, "", 0,
     "Of elasticity."},
    {"elasticity.micro_batch_sizes", KeyType::kIntegerList, "[2, 4, 6]", "", KeyUse::kIgnored, "",
     0, "Of elasticity."},
    {"elasticity.min_gpus", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0, "Of elasticity."},
    {"elasticity.max_gpus", KeyType::kInteger, "10000", "", KeyUse::kIgnored, "", 0,
     "Of elasticity."},
    {"elasticity.min_time", KeyType::kInteger, "0", "", KeyUse::kIgnored, "", 0, "Of elasticity."},
    {"elasticity.prefer_larger_batch", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Of elasticity."},
    {"elasticity.version", KeyType::kNumber, "0.2", "", KeyUse::kIgnored, "", 0, "Of elasticity."},
    {"elasticity.ignore_non_elastic_batch_info", KeyType::kBool, "false", "", KeyUse::kIgnored, "",
     0, "Of elasticity."},
    {"elasticity.model_parallel_size", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "Of elasticity."},
    {"elasticity.num_gpus_per_node", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "Of elasticity."},
    {"aio.block_size", KeyType::kInteger, "1048576", "", KeyUse::kIgnored, "", 0,
     "Offloaded states travel in chunks of up to 1,048,576 elements."},
    {"aio.queue_depth", KeyType::kInteger, "8", "", KeyUse::kIgnored, "", 0,
     "Use zero_optimization.offload_optimizer.buffer_count."},
    {"aio.intra_op_parallelism", KeyType::kInteger, "1", "[1, 64]", KeyUse::kUsed, "", 0,
     "Threads that read and write offloaded states, at most one a buffer."},
    {"aio.thread_count", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "Use aio.intra_op_parallelism."},
    {"aio.single_submit", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Files are read and written by threads."},
    {"aio.overlap_events", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Files are read and written by threads."},
    {"aio.use_gds", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Files are read and written by threads, through the page cache."},
    {"tensor_parallel.autotp_size", KeyType::kInteger, "0", "[0, inf)", KeyUse::kRefused, "[0, 1]",
     0, "Tensor parallelism is not supported."},
    // The user's part.
    {"model", KeyType::kFree, "{}", "", KeyUse::kUsed, "", kIdentity,
     "Free; config.user(\"model\") hands it to the program."},
    {"finetune", KeyType::kFree, "{}", "", KeyUse::kUsed, "", kIdentity,
     "Free; config.user(\"finetune\") hands it to the program (docs/MODELS.md)."},
    {"sample", KeyType::kFree, "{}", "", KeyUse::kUsed, "", 0,
     "Free; config.user(\"sample\") hands it to the program."},
    {"origins", KeyType::kFree, "{}", "", KeyUse::kUsed, "", 0,
     "Written into the config.json of a run directory (where each value came from); not read."},
};

}  // namespace

absl::Span<const ConfigKey> OtherConfigKeys() { return kKeys; }

}  // namespace dtrain::plan
