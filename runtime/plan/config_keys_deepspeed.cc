// The part of the table of keys that DeepSpeed has and dtrain has no use for, so that a
// configuration written for it is understood word by word: refused where the key changes numbers or
// whether the job fits, noted where it only observes or tunes.
#include "runtime/plan/config_keys.h"

namespace dtrain::plan {
namespace {

constexpr KeyUse kNoted = KeyUse::kIgnored;
constexpr KeyUse kRefused = KeyUse::kRefused;
constexpr char kNone[] = "Without effect here.";

// A section that is refused as a whole unless it is empty or says "enabled": false.
constexpr ConfigKey Section(const char* path, const char* doc) {
  return {path, KeyType::kFree, "{}", "", kRefused, "[{}]", kOffWhenDisabled, doc};
}
// One that is noted, on the same terms.
constexpr ConfigKey Noted(const char* path, const char* doc) {
  return {path, KeyType::kFree, "{}", "", kNoted, "", kOffWhenDisabled, doc};
}

constexpr ConfigKey kDeepSpeedKeys[] = {
    // Inside zero_optimization.
    {"zero_optimization.compute_grad_norm", KeyType::kBool, "true", "", kNoted, "", 0,
     "The norm is taken while gradients are reduced, and costs nothing."},
    Section("zero_optimization.zenflow", "ZenFlow updates with stale gradients."),
    Section("zero_optimization.zeropp_loco_param",
            "Quantised gradients carry no error to the next step."),
    {"zero_optimization.stage3_partition_stream_chunk_size", KeyType::kInteger, "null", "", kNoted,
     "", 0, "Chooses an implementation; weights are shared out by buckets."},
    {"zero_optimization.parameter_alignment", KeyType::kBool, "false", "", kNoted, "", 0,
     "Parameters are always aligned."},
    {"zero_optimization.memory_efficient_linear", KeyType::kBool, "true", "", kNoted, "", 0, kNone},
    {"zero_optimization.pipeline_loading_checkpoint", KeyType::kBool, "false", "", kNoted, "", 0,
     kNone},
    {"zero_optimization.enable_sanity_checks", KeyType::kBool, "false", "", kNoted, "", 0,
     "Ranks that read different weights always end with an error that names them."},
    {"zero_optimization.save_muon_momentum_buffer_in_memory", KeyType::kBool, "false", "", kNoted,
     "", 0, "Where states live is offload_optimizer's."},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", KeyType::kBool, "false", "",
     kNoted, "", 0, "Chooses an implementation; weights are gathered by buckets."},
    {"zero_optimization.stage3_allgather_sequential", KeyType::kBool, "false", "", kNoted, "", 0,
     "Chooses an implementation; weights are gathered by buckets."},
    {"zero_optimization.leaf_module", KeyType::kFree, "{}", "", kNoted, "", 0,
     "What an operation reads is gathered, whatever its module."},
    {"zero_optimization.offload_optimizer.super_offload", KeyType::kBool, "false", "", kNoted, "",
     0, "Chooses an implementation of the same update."},
    {"zero_optimization.offload_optimizer.cpuadam_cores_perc", KeyType::kNumber, "0.8", "[0, 1]",
     kNoted, "", 0, "A rank has one pool of threads."},
    // The 1-bit optimizers', which optimizer.type refuses.
    {"optimizer.params.freeze_step", KeyType::kInteger, "null", "", kRefused, "[]", 0,
     "Of 1-bit optimizers, which are not supported; comm.compression.start_step with another "
     "optimizer."},
    {"optimizer.params.var_freeze_step", KeyType::kInteger, "null", "", kRefused, "[]", 0,
     "Of 1-bit optimizers, which are not supported."},
    {"optimizer.params.comm_backend_name", KeyType::kString, "null", "", kNoted, "", 0,
     "Of 1-bit optimizers; comm.transport chooses how ranks are connected."},
    {"optimizer.params.cuda_aware", KeyType::kBool, "false", "", kNoted, "", 0,
     "Of 1-bit optimizers."},
    // Tensor parallelism, which tensor_parallel.autotp_size refuses.
    {"tensor_parallel.preset_model", KeyType::kString, "null", "", kNoted, "", 0,
     "Of tensor parallelism, which is not supported."},
    {"tensor_parallel.partition_config", KeyType::kFree, "{}", "", kNoted, "", 0,
     "Of tensor parallelism, which is not supported."},
    // Precision.
    Section("amp", "Apex AMP is not supported; use bf16.enabled or fp16.enabled."),
    Section("torch_autocast", "Autocast is not supported; use bf16.enabled or fp16.enabled."),
    {"data_types.param_dtype", KeyType::kString, "null", "", kRefused, "[]", 0,
     "Use bf16.enabled or fp16.enabled."},
    {"data_types.buffer_dtype", KeyType::kString, "null", "", kRefused, "[]", 0,
     "Buffers have the parameters' type."},
    {"data_types.keep_in_fp32_modules", KeyType::kStringList, "[]", "", kRefused,
     "[[], [\"auto\"]]", 0, "All parameters have one type."},
    // Gradients and batches.
    {"gradient_allreduce_op", KeyType::kString, "\"mean\"", "mean|sum", kRefused, "[\"mean\"]", 0,
     "Gradients are those of the mean over the global batch."},
    {"managed_gradient_accumulation", KeyType::kBool, "true", "", kRefused, "[true]", 0,
     "Write the loop with Engine::Backward and Engine::Update instead."},
    {"seq_parallel_communication_data_type", KeyType::kString, "\"fp32\"", "", kNoted, "", 0,
     "Of sequence parallelism, which is not supported."},
    {"sequence_parallel_size", KeyType::kInteger, "1", "[1, inf)", kRefused, "[1]", 0,
     "Sequence parallelism is not supported."},
    // Methods that change what is trained.
    Section("curriculum_learning", "Curriculum learning is not supported."),
    Section("data_efficiency", "Data sampling and token dropping are not supported."),
    Section("compression_training", "Compression during training is not supported."),
    Section("quantize_training", "Quantised training is not supported."),
    Section("weight_quantization", "Quantised weights are not supported."),
    Section("progressive_layer_drop", "Progressive layer dropping is not supported."),
    Section("eigenvalue", "Of quantised training, which is not supported."),
    Section("sparse_attention", "Sparse attention is the model's."),
    Section("expert_parallel", "Expert parallelism is not supported."),
    Section("hybrid_engine", "The hybrid engine is not supported."),
    // What is tuned or observed.
    Noted("pipeline", "Of pipeline parallelism, which is not supported."),
    Noted("compile", "Chooses an implementation; nothing is compiled at run time."),
    Noted("autotuning", "dtrain plan says what fits."),
    Noted("nebula", "Checkpoints are written by dtrain's own Checkpointer."),
    Noted("datastates_ckpt", "Checkpoints are written by dtrain's own Checkpointer."),
    Noted("comet", "Metrics are always in metrics/rank-0.jsonl."),
    Noted("timers", "Times of a step are always recorded."),
    {"checkpoint.writer", KeyType::kFree, "{}", "", kNoted, "", 0,
     "Checkpoints are written by dtrain's own Checkpointer."},
    {"checkpoint.parallel_write.pipeline_stage", KeyType::kBool, "false", "", kNoted, "", 0,
     "Every rank always writes an equal part."},
    {"log_level", KeyType::kString, "null", "", kNoted, "", 0, "DTRAIN_LOG_LEVEL sets it."},
    {"disable_python_gc", KeyType::kBool, "false", "", kNoted, "", 0, "There is no Python."},
    {"vocabulary_size", KeyType::kInteger, "null", "", kNoted, "", 0,
     "The model's own; model.vocab_size for the example."},
};

}  // namespace

absl::Span<const ConfigKey> DeepSpeedConfigKeys() { return kDeepSpeedKeys; }

}  // namespace dtrain::plan
