// The keys of the table that DeepSpeed has and dtrain does not use, so that a configuration written
// for DeepSpeed is understood completely. A key is refused if training without it would give other
// results or might not fit into memory, and noted if it only observes or tunes.
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr KeyUse kNoted = KeyUse::kIgnored;
constexpr KeyUse kRefused = KeyUse::kRefused;

// A section that is refused as a whole unless it is empty or says "enabled": false.
constexpr ConfigKey Section(const char* path, const char* doc) {
  return {path, KeyType::kFree, "{}", "", kRefused, "[{}]", kOffWhenDisabled, doc};
}
// A section that is noted unless it is empty or says "enabled": false.
constexpr ConfigKey Noted(const char* path, const char* doc) {
  return {path, KeyType::kFree, "{}", "", kNoted, "", kOffWhenDisabled, doc};
}

constexpr ConfigKey kDeepSpeedKeys[] = {
    // Inside zero_optimization.
    {"zero_optimization.compute_grad_norm", KeyType::kBool, "true", "", kNoted, "", 0,
     "The gradient norm is always computed, during the reduction."},
    Section("zero_optimization.zenflow",
            "Remove it: dtrain never updates weights with gradients of earlier steps."),
    Section("zero_optimization.zeropp_loco_param",
            "Remove it: quantised gradients at stages 2 and 3 do not add their rounding error to "
            "the next step."),
    {"zero_optimization.stage3_partition_stream_chunk_size", KeyType::kInteger, "null", "", kNoted,
     "", 0, "Weights are divided by buckets."},
    {"zero_optimization.parameter_alignment", KeyType::kBool, "false", "", kNoted, "", 0,
     "Parameters are always aligned."},
    {"zero_optimization.memory_efficient_linear", KeyType::kBool, "true", "", kNoted, "", 0,
     "It chooses between implementations in DeepSpeed."},
    {"zero_optimization.pipeline_loading_checkpoint", KeyType::kBool, "false", "", kNoted, "", 0,
     "It chooses between implementations in DeepSpeed."},
    {"zero_optimization.enable_sanity_checks", KeyType::kBool, "false", "", kNoted, "", 0,
     "If ranks read different weights, the run always ends with an error that names them."},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", KeyType::kBool, "false", "", kNoted,
     "", 0, "Set offload_optimizer.device to choose where states are stored."},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", KeyType::kBool, "false", "",
     kNoted, "", 0, "Weights are gathered by buckets."},
    {"zero_optimization.stage3_allgather_sequential", KeyType::kBool, "false", "", kNoted, "", 0,
     "Weights are gathered by buckets."},
    {"zero_optimization.offload_optimizer.super_offload", KeyType::kBool, "false", "", kNoted, "",
     0, "dtrain has one implementation of the offloaded update."},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", KeyType::kNumber, "0.8", "[0, 1]",
     kNoted, "", 0, "Each rank has one pool of threads. Set OMP_NUM_THREADS to choose its size."},
    // Keys of the 1-bit optimizers, which optimizer.type refuses.
    {"optimizer.params.freeze_step", KeyType::kInteger, "null", "", kRefused, "[]", 0,
     "Remove it: it configures 1-bit optimizers. With another optimizer, "
     "comm.compression.start_step has the same purpose."},
    {"optimizer.params.var_freeze_step", KeyType::kInteger, "null", "", kRefused, "[]", 0,
     "Remove it: it configures 1-bit optimizers, which dtrain does not have."},
    {"optimizer.params.comm_backend_name", KeyType::kString, "null", "", kNoted, "", 0,
     "Set comm.transport to choose how ranks are connected."},
    {"optimizer.params.cuda_aware", KeyType::kBool, "false", "", kNoted, "", 0,
     "It configures 1-bit optimizers, which are not supported."},
    // Keys of tensor parallelism, which tensor_parallel.autotp_size refuses.
    {"tensor_parallel.preset_model", KeyType::kString, "null", "", kNoted, "", 0,
     "It configures tensor parallelism, which is not supported."},
    {"tensor_parallel.partition_config", KeyType::kFree, "{}", "", kNoted, "", 0,
     "It configures tensor parallelism, which is not supported."},
    // Precision.
    Section("amp", "Set bf16.enabled or fp16.enabled instead of Apex AMP."),
    Section("torch_autocast", "Set bf16.enabled or fp16.enabled instead of autocast."),
    {"fp16.opt_level", KeyType::kString, "null", "", kNoted, "", 0,
     "It configures Apex AMP, which dtrain does not use."},
    {"bf16.auto_cast", KeyType::kBool, "false", "", kNoted, "", 0,
     "DeepSpeed does not read it: fp16 alone has it."},
    {"bf16.loss_scale", KeyType::kNumber, "null", "", kNoted, "", 0, "bf16 needs no loss scale."},
    {"bf16.initial_scale_power", KeyType::kInteger, "null", "", kNoted, "", 0,
     "bf16 needs no loss scale."},
    {"bf16.loss_scale_window", KeyType::kInteger, "null", "", kNoted, "", 0,
     "bf16 needs no loss scale."},
    {"bf16.hysteresis", KeyType::kInteger, "null", "", kNoted, "", 0, "bf16 needs no loss scale."},
    {"bf16.min_loss_scale", KeyType::kNumber, "null", "", kNoted, "", 0,
     "bf16 needs no loss scale."},
    {"data_types.param_dtype", KeyType::kString, "null", "", kRefused, "[]", 0,
     "Set bf16.enabled or fp16.enabled instead."},
    {"data_types.buffer_dtype", KeyType::kString, "null", "", kRefused, "[]", 0,
     "Buffers have the type of the parameters."},
    {"data_types.keep_in_fp32_modules", KeyType::kStringList, "[]", "", kRefused,
     "[[], [\"auto\"]]", 0, "All parameters have the same type."},
    // Gradients and batches.
    {"gradient_allreduce_op", KeyType::kString, "\"mean\"", "mean|sum", kRefused, "[\"mean\"]", 0,
     "Gradients are always averaged over the global batch."},
    {"managed_gradient_accumulation", KeyType::kBool, "true", "", kRefused, "[true]", 0,
     "To control accumulation, write the loop with Engine::Backward and Engine::Update."},
    {"seq_parallel_communication_data_type", KeyType::kString, "\"fp32\"", "", kNoted, "", 0,
     "Sequence parallelism is not supported."},
    {"sequence_parallel_size", KeyType::kInteger, "1", "[1, inf)", kRefused, "[1]", 0,
     "Set it to 1: dtrain has no sequence parallelism."},
    // Methods that change what is trained.
    Section("curriculum_learning", "Remove it: dtrain has no curriculum learning."),
    Section("data_efficiency", "Remove it: dtrain has no data sampling and no token dropping."),
    Section("compression_training", "Remove it: dtrain does not compress models."),
    Section("quantize_training", "Remove it: dtrain has no quantised training. See fp8.enabled."),
    Section("weight_quantization", "Remove it: dtrain does not quantise the weights of the model."),
    Section("progressive_layer_drop", "Remove it: dtrain has no progressive layer dropping."),
    Section("eigenvalue",
            "Remove it: it configures quantised training, which dtrain does not have."),
    Section("sparse_attention", "Implement sparse attention in the model."),
    Section("expert_parallel", "Remove it: dtrain has no expert parallelism."),
    Section("hybrid_engine", "Remove it: dtrain has no hybrid engine."),
    // Sections that tune or observe a run; they have no effect here.
    Noted("pipeline", "Pipeline parallelism is not supported."),
    Noted("compile", "Nothing is compiled at run time."),
    Noted("autotuning", "dtrain plan shows which settings fit into memory."),
    Noted("nebula", "Checkpoints are written by dtrain's own Checkpointer."),
    Noted("datastates_ckpt", "Checkpoints are written by dtrain's own Checkpointer."),
    Noted("comet", "Metrics are always in metrics/rank-0.jsonl of the run directory."),
    Noted("timers", "The times of every step are always recorded (time/...)."),
    {"checkpoint.writer", KeyType::kFree, "{}", "", kNoted, "", 0,
     "Checkpoints are written by dtrain's own Checkpointer."},
    {"checkpoint.parallel_write.pipeline_stage", KeyType::kBool, "false", "", kNoted, "", 0,
     "Every rank always writes an equal part of a checkpoint."},
    {"log_level", KeyType::kString, "null", "", kNoted, "", 0,
     "Set the environment variable DTRAIN_LOG_LEVEL instead."},
    {"disable_python_gc", KeyType::kBool, "false", "", kNoted, "", 0,
     "dtrain programs do not run Python."},
    {"vocabulary_size", KeyType::kInteger, "null", "", kNoted, "", 0,
     "The model sets its own vocabulary; for the example, set model.vocab_size."},
};

}  // namespace

absl::Span<const ConfigKey> DeepSpeedConfigKeys() { return kDeepSpeedKeys; }

}  // namespace dtrain::plan
