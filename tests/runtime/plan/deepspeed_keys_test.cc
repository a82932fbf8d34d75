// Every configuration key that DeepSpeed documents is known here: used, refused by name where it
// changes numbers or whether the job fits, or noted once. interop_ds_config_test asks DeepSpeed's
// own classes, where its wheel is installed; this table needs none.
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/config/config_keys.h"

namespace dtrain::plan::deepspeed_keys_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// By section, of DeepSpeed 0.19 (docs/_pages/config-json.md, runtime/zero/config.py,
// runtime/zero/offload_config.py, runtime/precision_config.py, the tutorials of ZeRO++, 1-bit Adam
// and AutoTP).
struct Section {
  const char* name;
  std::vector<const char*> keys;
};
const std::vector<Section>& DeepSpeedTable() {
  static const auto* const table = new std::vector<Section>{
      {"",
       {"train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "communication_data_type",
        "prescale_gradients",
        "gradient_predivide_factor",
        "gradient_allreduce_op",
        "gradient_clipping",
        "sparse_gradients",
        "steps_per_print",
        "wall_clock_breakdown",
        "memory_breakdown",
        "dump_state",
        "disable_allgather",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "amp",
        "torch_autocast",
        "expert_parallel",
        "pipeline",
        "nebula",
        "curriculum_learning",
        "data_efficiency",
        "compression_training",
        "sparse_attention",
        "progressive_layer_drop",
        "eigenvalue",
        "seq_parallel_communication_data_type",
        "hybrid_engine",
        "compile"}},
      {"optimizer", {"type", "legacy_fusion"}},
      {"optimizer.params",
       {"lr", "betas", "eps", "weight_decay", "torch_adam", "adam_w_mode", "freeze_step",
        "var_freeze_step", "comm_backend_name", "cuda_aware", "max_coeff", "min_coeff", "momentum",
        "muon_lr", "adam_lr", "max_grad_norm", "bias_correction", "amsgrad"}},
      {"scheduler", {"type"}},
      {"scheduler.params",
       {"warmup_min_lr",
        "warmup_max_lr",
        "warmup_num_steps",
        "warmup_type",
        "total_num_steps",
        "warmup_min_ratio",
        "cos_min_ratio",
        "last_batch_iteration",
        "lr_range_test_min_lr",
        "lr_range_test_step_size",
        "lr_range_test_step_rate",
        "lr_range_test_staircase",
        "cycle_min_lr",
        "cycle_max_lr",
        "cycle_first_step_size",
        "cycle_second_step_size",
        "cycle_first_stair_count",
        "cycle_second_stair_count",
        "decay_step_size",
        "decay_lr_rate",
        "cycle_momentum",
        "cycle_min_mom",
        "cycle_max_mom",
        "decay_mom_rate"}},
      {"zero_optimization",
       {"stage",
        "contiguous_gradients",
        "reduce_scatter",
        "round_robin_gradients",
        "reduce_bucket_size",
        "allgather_partitions",
        "allgather_bucket_size",
        "overlap_comm",
        "use_multi_rank_bucket_allreduce",
        "sub_group_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_model_persistence_threshold",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_module_granularity_threshold",
        "stage3_allgather_sequential",
        "stage3_partition_stream_chunk_size",
        "stage3_gather_16bit_weights_on_model_save",
        "zero_hpz_partition_size",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
        "zeropp_loco_param",
        "mics_shard_size",
        "mics_hierarchical_params_gather",
        "elastic_checkpoint",
        "load_from_fp32_weights",
        "ignore_unused_parameters",
        "legacy_stage1",
        "zenflow",
        "cpu_offload",
        "cpu_offload_params",
        "cpu_offload_use_pin_memory",
        "memory_efficient_linear"}},
      {"zero_optimization.leaf_module", {"classes", "names", "name_suffixes"}},
      {"zero_optimization.zeropp_loco_param", {"err_beta", "reset_T"}},
      {"zero_optimization.zenflow",
       {"topk_ratio", "select_strategy", "select_interval", "update_interval", "overlap_step",
        "offload", "auto_ratio", "full_warm_up_rounds", "pt_reserved_cores_perc"}},
      {"zero_optimization.offload_optimizer",
       {"device", "nvme_path", "buffer_count", "pin_memory", "pipeline_read", "pipeline_write",
        "fast_init", "ratio", "super_offload", "cpuadam_cores_perc"}},
      {"zero_optimization.offload_param",
       {"device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"}},
      {"aio",
       {"block_size", "queue_depth", "intra_op_parallelism", "thread_count", "single_submit",
        "overlap_events", "use_gds"}},
      {"fp16",
       {"enabled", "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window",
        "hysteresis", "consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads"}},
      {"bf16",
       {"enabled", "bf16_master_weights_and_grads", "bf16_optimizer_states",
        "check_grad_overflow"}},
      {"torch_autocast", {"enabled", "dtype", "lower_precision_safe_modules"}},
      {"data_types", {"grad_accum_dtype"}},
      {"activation_checkpointing",
       {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
        "number_checkpoints", "synchronize_checkpoint_boundary", "profile"}},
      {"tensor_parallel", {"autotp_size", "preset_model", "partition_config"}},
      {"expert_parallel", {"autoep_size"}},
      {"checkpoint",
       {"tag_validation", "load_universal", "use_node_local_storage",
        "parallel_write.pipeline_stage"}},
      {"checkpoint.writer",
       {"type", "decoupled", "io_buffer_size", "io_buffer_double", "data_parallel"}},
      {"elasticity",
       {"enabled", "max_train_batch_size", "micro_batch_sizes", "min_gpus", "max_gpus", "min_time",
        "prefer_larger_batch", "ignore_non_elastic_batch_info", "version"}},
      {"flops_profiler",
       {"enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules",
        "detailed", "output_file"}},
      {"autotuning",
       {"enabled", "metric", "tuner_type", "tuner_num_trials", "tuner_early_stopping",
        "start_profile_step", "end_profile_step", "num_tuning_micro_batch_sizes", "mp_size"}},
      {"comms_logger", {"enabled", "verbose", "prof_all", "prof_ops", "debug"}},
      {"tensorboard", {"enabled", "output_path", "job_name"}},
      {"wandb", {"enabled", "group", "team", "project"}},
      {"csv_monitor", {"enabled", "output_path", "job_name"}},
      {"comet", {"enabled", "project", "experiment_name"}}};
  return *table;
}

// A key of the table, an older name of one, or below one whose content is free.
bool IsKnown(absl::string_view path) {
  if (FindConfigKey(path) != nullptr || TodaysName(path) != nullptr) {
    return true;
  }
  for (size_t dot = path.rfind('.'); dot != absl::string_view::npos && dot > 0;
       dot = path.rfind('.', dot - 1)) {
    const ConfigKey* const above = FindConfigKey(path.substr(0, dot));
    if (above != nullptr && above->type == KeyType::kFree) {
      return true;
    }
  }
  return false;
}

TEST(DeepSpeedKeysTest, EveryDocumentedKeyIsKnown) {
  for (const Section& section : DeepSpeedTable()) {
    for (const char* const key : section.keys) {
      const std::string path = absl::StrCat(section.name, *section.name == '\0' ? "" : ".", key);
      EXPECT_TRUE(IsKnown(path)) << path;
    }
  }
  EXPECT_FALSE(IsKnown("zero_optimization.no_such_key")) << "the test would notice";
}

absl::StatusOr<Config> Parse(const std::string& section) {
  return Config::Parse(
      absl::StrCat("{\"train_batch_size\": 8, \"gradient_clipping\": 1.0, ", section, "}"),
      "run.json", {}, 1);
}

TEST(DeepSpeedKeysTest, WhatChangesNumbersIsRefusedByName) {
  const std::pair<const char*, const char*> refused[] = {
      {R"("zero_optimization": {"stage": 3, "zeropp_loco_param": {"err_beta": 0.8}})",
       "zero_optimization.zeropp_loco_param"},
      {R"("optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 400}})",
       "optimizer.params.freeze_step"},
      {R"("optimizer": {"type": "ZeroOneAdam", "params": {"var_freeze_step": 400}})",
       "optimizer.params.var_freeze_step"},
      {R"("tensor_parallel": {"autotp_size": 4, "preset_model": "llama"})",
       "tensor_parallel.autotp_size"}};
  for (const auto& [section, name] : refused) {
    const absl::Status status = Parse(section).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not supported"));
  }
  EXPECT_TRUE(Parse(R"("zero_optimization": {"zeropp_loco_param": {}})").ok());
}

TEST(DeepSpeedKeysTest, WhatOnlyTunesOrBelongsToWhatIsOffIsNotedOnce) {
  const std::pair<const char*, const char*> noted[] = {
      {R"("zero_optimization": {"stage3_partition_stream_chunk_size": 1048576})",
       "zero_optimization.stage3_partition_stream_chunk_size = 1048576 has no effect. "},
      {R"("optimizer": {"params": {"comm_backend_name": "nccl"}})",
       "optimizer.params.comm_backend_name = \"nccl\" has no effect. "},
      {R"("tensor_parallel": {"preset_model": "llama"})",
       "tensor_parallel.preset_model = \"llama\" has no effect. "},
      {R"("tensor_parallel": {"partition_config": {"layer_specs": []}})",
       "tensor_parallel.partition_config"}};
  for (const auto& [section, note] : noted) {
    const absl::StatusOr<Config> config = Parse(section);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_THAT(config->warnings(), SizeIs(1)) << section;
    EXPECT_THAT(config->warnings(), Contains(HasSubstr(note)));
  }
}

// Values as DeepSpeed takes them: lists, one string, the section empty or null.
TEST(DeepSpeedKeysTest, LeafModulesAreTakenAsDeepSpeedTakesThem) {
  const auto leaves = [](const std::string& section) {
    const absl::StatusOr<Config> config =
        Parse(absl::StrCat(R"("zero_optimization": {"stage": 3, "leaf_module": )", section, "}"));
    EXPECT_TRUE(config.ok()) << config.status();
    EXPECT_THAT(config->warnings(), SizeIs(0));
    return config->leaf_modules();
  };
  for (const char* const nothing : {"{}", "null"}) {
    const LeafModuleConfig absent = leaves(nothing);
    EXPECT_THAT(absent.classes, SizeIs(3));
    EXPECT_EQ(absent.classes, absent.default_classes);
    EXPECT_THAT(absent.names, SizeIs(0));
    EXPECT_THAT(absent.name_suffixes, SizeIs(0));
  }
  const LeafModuleConfig given =
      leaves(R"({"classes": "Moe", "names": ["a.b", "c"], "name_suffixes": [".moe"]})");
  EXPECT_THAT(given.classes, ElementsAre("Moe"));
  EXPECT_THAT(given.names, ElementsAre("a.b", "c"));
  EXPECT_THAT(given.name_suffixes, ElementsAre(".moe"));
  EXPECT_THAT(given.default_classes, SizeIs(3));
  const absl::Status wrong =
      Parse(R"("zero_optimization": {"leaf_module": {"names": [3]}})").status();
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("zero_optimization.leaf_module.names"));
  const absl::Status unknown =
      Parse(R"("zero_optimization": {"leaf_module": {"name": ["a"]}})").status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("zero_optimization.leaf_module.names"));
}

}  // namespace
}  // namespace dtrain::plan::deepspeed_keys_test
