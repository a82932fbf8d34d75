// The keys of the table for metrics and traces, the sections of DeepSpeed that have no other place,
// and the user's sections.
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr ConfigKey kOtherKeys[] = {
    // Metrics.
    {"metrics.interval", KeyType::kInteger, "10", "[1, inf)", KeyUse::kUsed, "", 0,
     "Prints a progress line every N steps, and for the first and the last step. Every step is "
     "recorded in the metrics files."},
    {"metrics.console", KeyType::kStringList,
     R"(["loss","rate","eta","lr","grad_norm","mfu","exposed_comm"])", "", KeyUse::kUsed, "", 0,
     "Columns of the progress line. Put the most important first: a narrow terminal leaves out the "
     "last ones. Other columns are gemm_fraction, step_time, loss_scale and memory. The full name "
     "of any metric is a column too (time/data_s, eval/loss), and so is a metric that the program "
     "logs itself. mfu shows the GEMM fraction where the peak of the device is not known."},
    {"metrics.tensorboard", KeyType::kBool, "true", "", KeyUse::kUsed, "", 0,
     "Writes TensorBoard event files to report/tensorboard in the run directory."},
    {"metrics.trace_steps", KeyType::kInteger, "0", "[0, 1000]", KeyUse::kUsed, "", 0,
     "Number of steps that every rank records as a Chrome trace, in trace/ of the run directory. "
     "rank-R.json holds operations and phases, rank-R-memory.json the memory by category. 0 "
     "records none."},
    {"metrics.trace_first_step", KeyType::kInteger, "3", "[1, inf)", KeyUse::kUsed, "", 0,
     "First step of the trace."},
    {"steps_per_print", KeyType::kInteger, "10", "[1, inf)", KeyUse::kIgnored, "", 0,
     "Set metrics.interval instead."},
    {"wall_clock_breakdown", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The times of every step are always recorded (time/...)."},
    {"memory_breakdown", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The memory of every step is always recorded (memory/...)."},
    {"dump_state", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The run directory always holds the values in force (config.json)."},
    {"disable_allgather", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "It chooses between implementations in DeepSpeed."},
    {"dataloader_drop_last", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "No sample is dropped: a batch may continue into the next epoch."},
    {"zero_allow_untested_optimizer", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Every optimizer works with ZeRO."},
    {"use_data_before_expert_parallelism", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Expert parallelism is not supported."},
    {"timers_barrier", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The times of a step are measured without a barrier."},
    {"zero_force_ds_cpu_optimizer", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Offloaded states are always updated by dtrain's own CPU optimizer."},
    {"graph_harvesting", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "To use CUDA graphs, set cuda_graphs."},
    {"tensorboard.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Set metrics.tensorboard instead."},
    {"tensorboard.output_path", KeyType::kString, "\"\"", "", KeyUse::kIgnored, "", 0,
     "All output goes to the run directory."},
    {"tensorboard.job_name", KeyType::kString, "\"DeepSpeedJobName\"", "", KeyUse::kIgnored, "", 0,
     "All output goes to the run directory."},
    {"csv_monitor.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Metrics are always in metrics/rank-0.jsonl of the run directory."},
    {"csv_monitor.output_path", KeyType::kString, "\"\"", "", KeyUse::kIgnored, "", 0,
     "All output goes to the run directory."},
    {"csv_monitor.job_name", KeyType::kString, "\"DeepSpeedJobName\"", "", KeyUse::kIgnored, "", 0,
     "All output goes to the run directory."},
    {"wandb.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "To use Weights & Biases, run wandb sync on the TensorBoard files."},
    {"wandb.group", KeyType::kString, "null", "", KeyUse::kIgnored, "", 0,
     "dtrain does not write to Weights & Biases by itself."},
    {"wandb.team", KeyType::kString, "null", "", KeyUse::kIgnored, "", 0,
     "dtrain does not write to Weights & Biases by itself."},
    {"wandb.project", KeyType::kString, "\"deepspeed\"", "", KeyUse::kIgnored, "", 0,
     "dtrain does not write to Weights & Biases by itself."},
    {"comms_logger.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the last collectives (the flight recorder); dtrain trace shows them."},
    {"comms_logger.verbose", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the last collectives (the flight recorder); dtrain trace shows them."},
    {"comms_logger.prof_all", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the last collectives (the flight recorder); dtrain trace shows them."},
    {"comms_logger.debug", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the last collectives (the flight recorder); dtrain trace shows them."},
    {"comms_logger.prof_ops", KeyType::kStringList, "[]", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the last collectives (the flight recorder); dtrain trace shows them."},
    {"flops_profiler.enabled", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the model FLOP/s (perf/mfu, perf/gemm_fraction)."},
    {"flops_profiler.recompute_fwd_factor", KeyType::kNumber, "0", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the model FLOP/s (perf/mfu, perf/gemm_fraction)."},
    {"flops_profiler.profile_step", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the model FLOP/s (perf/mfu, perf/gemm_fraction)."},
    {"flops_profiler.module_depth", KeyType::kInteger, "-1", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the model FLOP/s (perf/mfu, perf/gemm_fraction)."},
    {"flops_profiler.top_modules", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the model FLOP/s (perf/mfu, perf/gemm_fraction)."},
    {"flops_profiler.detailed", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the model FLOP/s (perf/mfu, perf/gemm_fraction)."},
    {"flops_profiler.output_file", KeyType::kString, "null", "", KeyUse::kIgnored, "", 0,
     "dtrain always records the model FLOP/s (perf/mfu, perf/gemm_fraction)."},
    // Other sections of DeepSpeed.
    {"activation_checkpointing.mode", KeyType::kString, "\"none\"", "none|full|selective",
     KeyUse::kUsed, "", 0,
     "Chooses which results of forward are computed again in backward instead of being kept. none: "
     "no results. full: whole layers. selective: the parts of a layer that are cheap to compute "
     "and large to keep (in the example, the MLP). Results are bit-equal. The model must call "
     "dtrain::Recompute, as the example does."},
    {"activation_checkpointing.every", KeyType::kInteger, "1", "[1, inf)", KeyUse::kUsed, "", 0,
     "Recomputes every Nth layer, starting with the first. 1 recomputes all layers."},
    {"activation_checkpointing.cpu_checkpointing", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     0,
     "Moves the inputs of recomputed segments to a second buffer of host memory (pinned if the "
     "rank trains on a GPU) until backward needs them. They are written during forward and read "
     "back ahead of backward. Results are bit-equal. It applies to everything that the model hands "
     "to dtrain::Recompute."},
    {"activation_checkpointing.nvme_path", KeyType::kString, "null", "", KeyUse::kUsed, "", 0,
     "Does the same as cpu_checkpointing with a file in this folder, which should be on a fast "
     "local disk. The file grows during the first step. It has no name, so nothing stays behind "
     "when the run ends. It cannot be combined with cpu_checkpointing and does not work on a GPU."},
    {"activation_checkpointing.synchronize_checkpoint_boundary", KeyType::kBool, "false", "",
     KeyUse::kUsed, "", 0,
     "Makes forward wait until the inputs of a segment are written. On a GPU, the device waits and "
     "the host does not. It needs cpu_checkpointing or nvme_path. It saves the most memory, and it "
     "shows how much time the offloading takes."},
    {"activation_checkpointing.partition_activations", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "It configures tensor parallelism, which is not supported."},
    {"activation_checkpointing.number_checkpoints", KeyType::kInteger, "null", "[1, inf)",
     KeyUse::kIgnored, "", 0,
     "Offloaded activations take as much room as they need. Set mode and every to choose the "
     "layers that are recomputed."},
    {"activation_checkpointing.contiguous_memory_optimization", KeyType::kBool, "false", "",
     KeyUse::kIgnored, "", 0, "Each input is always kept in one piece."},
    {"activation_checkpointing.profile", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "The times of recomputing and of waiting for offloaded activations are always recorded "
     "(time/recompute_s, time/activation_wait_s)."},
    {"elasticity.enabled", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "Set train_batch_size. The batch stays the same when the world size changes."},
    {"elasticity.max_train_batch_size", KeyType::kInteger, "2000", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.micro_batch_sizes", KeyType::kIntegerList, "[2, 4, 6]", "", KeyUse::kIgnored, "",
     0, "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.min_gpus", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.max_gpus", KeyType::kInteger, "10000", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.min_time", KeyType::kInteger, "0", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.prefer_larger_batch", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.version", KeyType::kNumber, "0.2", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.ignore_non_elastic_batch_info", KeyType::kBool, "false", "", KeyUse::kIgnored, "",
     0, "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.model_parallel_size", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"elasticity.num_gpus_per_node", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "DeepSpeed's elastic batch sizes are not supported."},
    {"aio.block_size", KeyType::kInteger, "1048576", "", KeyUse::kIgnored, "", 0,
     "Offloaded states are read and written in chunks of up to 1,048,576 elements."},
    {"aio.queue_depth", KeyType::kInteger, "8", "", KeyUse::kIgnored, "", 0,
     "Set zero_optimization.offload_optimizer.buffer_count instead."},
    {"aio.intra_op_parallelism", KeyType::kInteger, "1", "[1, 64]", KeyUse::kUsed, "", 0,
     "Threads that read and write offloaded states. At most one thread works on each buffer."},
    {"aio.thread_count", KeyType::kInteger, "1", "", KeyUse::kIgnored, "", 0,
     "Set aio.intra_op_parallelism instead."},
    {"aio.single_submit", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Files are read and written by threads."},
    {"aio.overlap_events", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Files are read and written by threads."},
    {"aio.use_gds", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Files are read and written by threads, through the page cache."},
    {"tensor_parallel.autotp_size", KeyType::kInteger, "0", "[0, inf)", KeyUse::kRefused, "[0, 1]",
     0, "Set it to 0 or 1: dtrain has no tensor parallelism."},
    // The user's sections.
    {"model", KeyType::kFree, "{}", "", KeyUse::kUsed, "", kIdentity,
     "Settings of the model. dtrain does not read them, except to plan memory; the program gets "
     "them with config.user(\"model\"). docs/MODELS.md lists the keys of the example."},
    {"finetune", KeyType::kFree, "{}", "", KeyUse::kUsed, "", kIdentity,
     "Settings of a fine-tuning. The program gets them with config.user(\"finetune\"). "
     "docs/MODELS.md lists the keys of the example."},
    {"sample", KeyType::kFree, "{}", "", KeyUse::kUsed, "", 0,
     "Settings for sampling text. The program gets them with config.user(\"sample\"). "
     "docs/MODELS.md lists the keys of the example."},
    {"origins", KeyType::kFree, "{}", "", KeyUse::kUsed, "", 0,
     "In the config.json of a run directory, says where each value came from. dtrain writes this "
     "key. If a run's config.json is used again, values that followed from the run's length are "
     "thus computed anew."},
};

}  // namespace

absl::Span<const ConfigKey> OtherConfigKeys() { return kOtherKeys; }

}  // namespace dtrain::plan
