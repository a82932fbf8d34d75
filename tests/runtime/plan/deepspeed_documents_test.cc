// Whole ds_config.json documents of the shapes that users have, composed for this test. Each is
// accepted, with the values that DeepSpeed or the Hugging Face Trainer would take, or refused by
// the name of the key that would change numbers or whether the job fits.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "dtrain/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/optimizer/lr_schedule.h"

namespace dtrain::deepspeed_documents_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

struct Document {
  const char* name;
  int world_size;
  const char* text;
  // The values in force after an accepted document.
  std::vector<std::pair<const char*, const char*>> values = {};  // Key, JSON.
  std::vector<const char*> notes = {};
  const char* refused = "";  // A part of the error line; "": accepted.
};

const std::vector<Document>& Documents() {
  static const auto* const documents = new std::vector<Document>{
      {.name = "the Trainer's ZeRO-2, all numbers of the batch auto",
       .world_size = 4,
       .text = R"({
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
             "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                 "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true,
      "reduce_scatter": true, "reduce_bucket_size": "auto", "contiguous_gradients": true},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": false})",
       .values = {{"train_micro_batch_size_per_gpu", "8"},
                  {"gradient_accumulation_steps", "1"},
                  {"train_batch_size", "32"},
                  {"gradient_clipping", "1.0"},
                  {"optimizer.params.lr", "1e-3"},
                  {"optimizer.params.betas", "[0.9, 0.999]"},
                  {"scheduler.params.warmup_max_lr", "1e-3"},
                  {"zero_optimization.reduce_bucket_size", "6553600"}},
       .notes = {"train_micro_batch_size_per_gpu is \"auto\": dtrain takes 8, the Hugging Face "
                 "Trainer's per_device_train_batch_size",
                 "gradient_clipping is \"auto\": dtrain takes 1.0",
                 "optimizer.params.lr is \"auto\": dtrain takes 0.001, the default of AdamW",
                 "bf16.enabled is \"auto\": dtrain takes false",
                 "reduce_bucket_size is \"auto\": dtrain takes 6553600, the default, because the "
                 "size of the model is not known here"}},
      {.name = "the Trainer's ZeRO-3 with offload, and a model",
       .world_size = 8,
       .text = R"({
    "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto", "torch_adam": true,
                                              "adam_w_mode": true}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"last_batch_iteration": -1,
      "total_num_steps": "auto", "warmup_min_lr": "auto", "warmup_max_lr": "auto",
      "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true,
      "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
      "stage3_max_live_parameters": "auto", "stage3_max_reuse_distance": "auto",
      "stage3_gather_16bit_weights_on_model_save": "auto"},
    "gradient_accumulation_steps": 4, "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 2, "train_steps": 1000,
    "model": {"hidden_size": 1024}})",
       .values = {{"train_batch_size", "64"},
                  {"zero_optimization.reduce_bucket_size", "1048576"},
                  {"zero_optimization.stage3_prefetch_bucket_size", "943718"},
                  {"zero_optimization.stage3_param_persistence_threshold", "10240"},
                  {"zero_optimization.stage3_max_live_parameters", "1000000000"},
                  {"scheduler.params.total_num_steps", "1000"},
                  {"scheduler.params.warmup_num_steps", "20"},
                  {"scheduler.params.warmup_max_lr", "2e-5"}},
       .notes = {"reduce_bucket_size is \"auto\": dtrain takes 1048576, which follows from the "
                 "model's hidden size, 1024",
                 "stage3_max_live_parameters is \"auto\": dtrain takes 1000000000, the default",
                 "stage3_gather_16bit_weights_on_model_save = \"auto\" has no effect",
                 "total_num_steps is \"auto\": dtrain takes 1000, which is train_steps"}},
      {.name = "Accelerate's, everything auto that it can fill",
       .world_size = 2,
       .text = R"({
    "zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "auto",
      "nvme_path": "auto"}, "offload_param": {"device": "auto", "nvme_path": "auto"},
      "stage3_gather_16bit_weights_on_model_save": "auto", "overlap_comm": "auto",
      "allgather_bucket_size": "auto", "sub_group_size": "auto"},
    "amp": {"enabled": "auto", "opt_level": "auto"}, "communication_data_type": "auto",
    "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2,
    "optimizer": {"type": "auto", "params": {"lr": "auto", "momentum": "auto"}},
    "scheduler": {"type": "auto", "params": {"total_num_steps": "auto"}},
    "steps_per_print": "auto"})",
       .values = {{"zero_optimization.stage", "0"},
                  {"zero_optimization.offload_param.device", "\"none\""},
                  {"train_batch_size", "32"},
                  {"optimizer.type", "\"AdamW\""},
                  {"comm.wire_dtype", "\"fp32\""},
                  {"scheduler.type", "null"}},
       .notes = {"zero_optimization.stage is \"auto\": dtrain takes 0, the default",
                 "amp.enabled is \"auto\": dtrain takes false",
                 "steps_per_print = \"auto\" has no effect"}},
      {.name = "an image classifier's",
       .world_size = 2,
       .text = R"({
    "train_batch_size": 16, "steps_per_print": 2000,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8,
                                             "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001,
                                                 "warmup_num_steps": 1000}},
    "gradient_clipping": 1.0, "prescale_gradients": false, "bf16": {"enabled": false},
    "fp16": {"enabled": false, "auto_cast": true, "fp16_master_weights_and_grads": true,
             "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1,
             "initial_scale_power": 15, "opt_level": "O2"},
    "wall_clock_breakdown": false,
    "zero_optimization": {"stage": 0, "allgather_partitions": true, "reduce_scatter": true,
      "allgather_bucket_size": 50000000, "reduce_bucket_size": 50000000, "overlap_comm": true,
      "contiguous_gradients": true, "cpu_offload": false}})",
       .values = {{"optimizer.params.weight_decay", "3e-7"}, {"fp16.enabled", "false"}},
       .notes = {"fp16.auto_cast = true has no effect. fp16.enabled is not true.",
                 "fp16.fp16_master_weights_and_grads = true has no effect"}},
      {.name = "the same with fp16 on",
       .world_size = 1,
       .text = R"({"train_batch_size": 16, "fp16": {"enabled": true, "auto_cast": true}})",
       .refused = "fp16.auto_cast = true is not supported"},
      {.name = "a BERT pretraining with LAMB",
       .world_size = 64,
       .text = R"({
    "train_batch_size": 65536, "train_micro_batch_size_per_gpu": 64, "steps_per_print": 1000,
    "prescale_gradients": false,
    "optimizer": {"type": "Lamb", "params": {"lr": 11e-3, "weight_decay": 0.01,
      "bias_correction": false, "max_coeff": 0.3, "min_coeff": 0.01, "max_grad_norm": 0}},
    "gradient_clipping": 1.0, "wall_clock_breakdown": false,
    "fp16": {"enabled": true, "loss_scale": 0},
    "progressive_layer_drop": {"enabled": false, "theta": 0.5, "gamma": 0.001}})",
       .values = {{"gradient_accumulation_steps", "16"},
                  {"optimizer.params.bias_correction", "false"}}},
      {.name = "the same with sparse attention",
       .world_size = 1,
       .text = R"({"train_batch_size": 64, "sparse_attention": {"mode": "fixed", "block": 16,
      "different_layout_per_head": true, "num_local_blocks": 4, "num_global_blocks": 1}})",
       .refused = "sparse_attention"},
      {.name = "1-bit Adam",
       .world_size = 1,
       .text = R"({"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16,
    "optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "weight_decay": 0.01,
      "bias_correction": false, "freeze_step": 23000, "comm_backend_name": "nccl"}},
    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}})",
       .refused = "optimizer.params.freeze_step = 23000 is not supported"},
      {.name = "a Megatron pretraining, bf16 at stage 1",
       .world_size = 32,
       .text = R"({
    "train_batch_size": 256, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 10,
    "zero_optimization": {"stage": 1}, "gradient_clipping": 1.0, "prescale_gradients": true,
    "bf16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12,
             "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1},
    "data_types": {"grad_accum_dtype": "fp32"}, "wall_clock_breakdown": false,
    "curriculum_learning": {"enabled": false, "curriculum_type": "seqlen"},
    "comms_logger": {"enabled": true, "verbose": false, "prof_all": true, "debug": false},
    "flops_profiler": {"enabled": false, "profile_step": 1, "module_depth": -1,
                       "top_modules": 1, "detailed": true, "output_file": null}})",
       .values = {{"gradient_accumulation_steps", "4"}, {"bf16.enabled", "true"}},
       .notes = {"bf16.initial_scale_power = 12 has no effect. bf16 needs no loss scale."}},
      {.name = "a Megatron pretraining with a curriculum",
       .world_size = 1,
       .text = R"({"train_batch_size": 256, "bf16": {"enabled": true},
    "curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 80,
      "max_difficulty": 2048, "schedule_type": "fixed_linear"}})",
       .refused = "curriculum_learning"},
      {.name = "ZeRO-Infinity on local disks",
       .world_size = 16,
       .text = R"({
    "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3,
      "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true,
                        "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
      "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true,
                            "buffer_count": 4, "pipeline_read": true, "pipeline_write": true,
                            "fast_init": false},
      "stage3_max_live_parameters": 3e7, "stage3_max_reuse_distance": 3e7},
    "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": false,
            "overlap_events": true},
    "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": false,
      "contiguous_memory_optimization": false, "number_checkpoints": null,
      "synchronize_checkpoint_boundary": false, "profile": false}})",
       .values = {{"train_batch_size", "64"},
                  {"zero_optimization.offload_param.device", "\"nvme\""},
                  {"gradient_clipping", "1.0"}},
       .notes = {"aio.queue_depth = 32 has no effect",
                 "gradient_clipping is not set: gradients are clipped to a norm of 1.0, which "
                 "older releases of DeepSpeed do not do"}},
      {.name = "ZeRO++",
       .world_size = 16,
       .text = R"({
    "train_batch_size": 512, "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 10000000, "reduce_scatter": true,
      "zero_quantized_weights": true, "zero_hpz_partition_size": 8,
      "zero_quantized_gradients": true, "contiguous_gradients": true, "overlap_comm": true},
    "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2,
             "min_loss_scale": 1, "initial_scale_power": 11}, "gradient_clipping": 1.0})",
       .values = {{"zero_optimization.zero_hpz_partition_size", "8"},
                  {"gradient_accumulation_steps", "16"}}},
      {.name = "MiCS",
       .world_size = 16,
       .text = R"({"train_batch_size": 64, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "mics_shard_size": 8,
                          "mics_hierarchical_params_gather": true}})",
       .refused = "zero_optimization.mics_hierarchical_params_gather"},
      {.name = "quantised training (MoQ)",
       .world_size = 1,
       .text = R"({"train_batch_size": 32, "optimizer": {"type": "Adam", "params": {"lr": 2e-5}},
    "fp16": {"enabled": true}, "quantize_training": {"enabled": true,
      "quantize_verbose": true, "quantizer_kernel": true, "quantize_type": "symmetric",
      "quantize_bits": {"start_bits": 12, "target_bits": 8}}})",
       .refused = "quantize_training"},
      {.name = "compression, all of it switched off",
       .world_size = 1,
       .text = R"({"train_batch_size": 32, "gradient_clipping": 1.0, "compression_training": {
    "weight_quantization": {"shared_parameters": {"enabled": false, "quantizer_kernel": false,
      "schedule_offset": 0}, "different_groups": {"wq1": {"params": {"start_bits": 8},
      "modules": ["attention.self"]}}},
    "activation_quantization": {"shared_parameters": {"enabled": false}},
    "sparse_pruning": {"shared_parameters": {"enabled": false, "method": "l1"}},
    "layer_reduction": {"enabled": false, "keep_number_layer": 5}}})"},
      {.name = "compression with one method on",
       .world_size = 1,
       .text = R"({"train_batch_size": 32, "compression_training": {
    "layer_reduction": {"enabled": false},
    "weight_quantization": {"shared_parameters": {"enabled": true, "quantize_groups": 1},
                            "different_groups": {}}}})",
       .refused = "compression_training"},
      {.name = "every monitor, profiler and tuner",
       .world_size = 1,
       .text = R"({
    "train_batch_size": 8, "gradient_clipping": 0.5,
    "tensorboard": {"enabled": true, "output_path": "output/ds_logs/", "job_name": "train"},
    "wandb": {"enabled": true, "team": "lab", "group": "a", "project": "p"},
    "csv_monitor": {"enabled": true, "output_path": "csv/", "job_name": "train"},
    "comet": {"enabled": true, "project": "p", "experiment_name": "e"},
    "flops_profiler": {"enabled": true, "profile_step": 5, "output_file": "flops.txt"},
    "autotuning": {"enabled": true, "fast": true, "metric": "throughput",
                   "arg_mappings": {"train_micro_batch_size_per_gpu":
                                    "--per_device_train_batch_size"}},
    "comms_logger": {"enabled": true, "prof_ops": ["all_reduce"]},
    "memory_breakdown": true, "dump_state": true, "zero_allow_untested_optimizer": true,
    "dataloader_drop_last": true})",
       .values = {{"gradient_clipping", "0.5"}},
       .notes = {"autotuning", "wandb.project", "comet", "dump_state"}},
      {.name = "elastic batch sizes",
       .world_size = 1,
       .text = R"({"train_batch_size": 64, "elasticity": {"enabled": true,
    "max_train_batch_size": 2000, "micro_batch_sizes": [2, 4, 6], "min_gpus": 1,
    "max_gpus": 10000, "min_time": 20, "prefer_larger_batch": true, "version": 0.1}})",
       .refused = "elasticity.enabled = true is not supported. Set train_batch_size."},
      {.name = "an RLHF actor's",
       .world_size = 8,
       .text = R"({
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8, "steps_per_print": 10,
    "zero_optimization": {"stage": 3, "offload_param": {"device": "none"},
      "offload_optimizer": {"device": "none"}, "stage3_param_persistence_threshold": 1e4,
      "stage3_max_live_parameters": 3e7, "stage3_prefetch_bucket_size": 3e7,
      "memory_efficient_linear": false},
    "fp16": {"enabled": true, "loss_scale_window": 100}, "gradient_clipping": 1.0,
    "prescale_gradients": false, "wall_clock_breakdown": false,
    "hybrid_engine": {"enabled": false, "max_out_tokens": 512, "inference_tp_size": 1}})",
       .values = {{"fp16.loss_scale_window", "100"}}},
      {.name = "older spellings",
       .world_size = 2,
       .text = R"({
    "train_micro_batch_size_per_gpu": 16, "bfloat16": {"enabled": true}, "optimizer": null,
    "zero_optimization": {"stage": 2, "cpu_offload": true, "cpu_offload_params": false,
      "offload_optimizer": {"device": "cpu"}, "legacy_stage1": false}})",
       .values = {{"zero_optimization.offload_optimizer.device", "\"cpu\""}},
       .notes = {"cpu_offload is an older spelling", "gradient_clipping is not set"}},
      {.name = "warm-up without steps",
       .world_size = 1,
       .text = R"({"train_batch_size": 8, "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4,
      "warmup_num_steps": 0, "total_num_steps": 100, "warmup_type": "linear"}}})",
       .values = {{"scheduler.params.warmup_num_steps", "0"}, {"train_steps", "100"}},
       .notes = {"scheduler.params.warmup_num_steps 0 acts as 2"}},
      {.name = "an optimizer that nobody has",
       .world_size = 1,
       .text = R"({"train_batch_size": 8, "optimizer": {"type": "MuAdam"}})",
       .refused = "optimizer.type is \"MuAdam\"; want one of AdamW"}};
  return *documents;
}

TEST(DeepSpeedDocumentsTest, EachIsAcceptedWithItsValuesOrRefusedByName) {
  ASSERT_GE(Documents().size(), 20U);
  for (const Document& document : Documents()) {
    SCOPED_TRACE(document.name);
    const auto config = Config::Parse(document.text, "ds.json", {}, document.world_size);
    if (*document.refused != '\0') {
      EXPECT_THAT(std::string(config.status().message()),
                  AllOf(HasSubstr("ds.json"), HasSubstr(document.refused), Not(HasSubstr("\n"))));
      continue;
    }
    ASSERT_TRUE(config.ok()) << config.status();
    for (const auto& [key, value] : document.values) {
      EXPECT_EQ(*config->Find(key), Json::parse(value)) << key;
    }
    for (const char* const note : document.notes) {
      EXPECT_THAT(config->warnings(), Contains(HasSubstr(note))) << note;
    }
    EXPECT_THAT(config->warnings(), Each(Not(HasSubstr("\n"))));
  }
}

// One note for each "auto", none for what says a value.
TEST(DeepSpeedDocumentsTest, EachAutoHasOneNote) {
  for (const Document& document : Documents()) {
    const auto config = Config::Parse(document.text, "ds.json", {}, document.world_size);
    if (!config.ok()) {
      continue;
    }
    const std::string text = document.text;
    size_t autos = 0;
    for (size_t at = text.find("\"auto\""); at != std::string::npos;
         at = text.find("\"auto\"", at + 1)) {
      ++autos;
    }
    const size_t notes = static_cast<size_t>(
        std::count_if(config->warnings().begin(), config->warnings().end(),
                      [](const std::string& note) { return absl::StrContains(note, "\"auto\""); }));
    // amp's opt_level goes with its "enabled".
    EXPECT_EQ(notes, autos - (absl::StrContains(text, "opt_level\": \"auto") ? 1 : 0))
        << document.name;
  }
}

// The values in force, as the run directory has them, load to the same values without notes.
TEST(DeepSpeedDocumentsTest, ValuesInForceHoldNoAuto) {
  for (const Document& document : Documents()) {
    const auto config = Config::Parse(document.text, "ds.json", {}, document.world_size);
    if (!config.ok()) {
      continue;
    }
    Json values = config->values_in_force();
    values.erase("amp");  // Its content is free.
    EXPECT_THAT(DumpJson(values["optimizer"]), Not(HasSubstr("\"auto\""))) << document.name;
    EXPECT_THAT(DumpJson(values["zero_optimization"]), Not(HasSubstr("\"auto\"")));
    const auto again = Config::Parse(DumpJson(values), "config.json", {}, document.world_size);
    ASSERT_TRUE(again.ok()) << document.name << ": " << again.status();
    Json same = again->values_in_force();
    for (const char* const key : {"amp", "origins"}) {
      values.erase(key);
      same.erase(key);
    }
    EXPECT_EQ(values, same) << document.name;
  }
}

std::string ErrorOf(const std::string& rest) {
  const auto config =
      Config::Parse(absl::StrCat(R"({"train_batch_size": 8, )", rest, "}"), "ds.json", {}, 2);
  return config.ok() ? "accepted" : std::string(config.status().message());
}

TEST(DeepSpeedDocumentsTest, TwoSpellingsOfOneKeyMustAgree) {
  EXPECT_EQ(ErrorOf(R"("bf16": {"enabled": true}, "bfloat16": {"enabled": true})"), "accepted");
  EXPECT_EQ(ErrorOf(R"("bfloat16": {"enabled": true}, "bf16": {"enabled": null})"), "accepted");
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {R"("bf16": {"enabled": true}, "bfloat16": {"enabled": false})",
       {"bf16.enabled and bfloat16.enabled are two names of one setting and say true and false",
        "keep bf16.enabled alone"}},
      {R"("bfloat16": {"enabled": false}, "bf16": {"enabled": true})",
       {"bfloat16.enabled and bf16.enabled"}},
      {R"("zero_optimization": {"stage": 3, "cpu_offload": true,
                                "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}})",
       {"zero_optimization.cpu_offload and zero_optimization.offload_optimizer.device",
        "say \"cpu\" and \"nvme\""}},
      {R"("zero_optimization": {"stage": 3, "cpu_offload_param": true,
                                "cpu_offload_params": false})",
       {"cpu_offload_param and zero_optimization.cpu_offload_params"}},
      {R"("zero_optimization": {"stage": 3, "prefetch_bucket_size": 1,
                                "stage3_prefetch_bucket_size": 2})",
       {"say 1 and 2"}},
      {R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_steps": 10,
                                                          "total_num_steps": 20}})",
       {"say 10 and 20"}}};
  for (const auto& [text, words] : cases) {
    for (const char* const word : words) {
      EXPECT_THAT(ErrorOf(text), HasSubstr(word)) << text;
    }
  }
  // On the command line a later value takes an earlier one's place, by whichever name.
  const auto config = Config::Parse(R"({"train_batch_size": 8, "bfloat16": {"enabled": true}})",
                                    "ds.json", {"bf16.enabled=false"}, 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config->Find("bf16.enabled"), false);
  EXPECT_THAT(std::string(Config::Parse(R"({"train_batch_size": 8})", "ds.json",
                                        {R"(zero_optimization={"stage": 1, "cpu_offload": true,
                                            "offload_optimizer": {"device": "none"}})"},
                                        1)
                              .status()
                              .message()),
              HasSubstr("two names of one setting"));
}

TEST(DeepSpeedDocumentsTest, ARateOfZeroBesideGroupsNeedsNoScheduler) {
  const std::string optimizer =
      R"("optimizer": {"params": {"lr": 0}, "param_groups": [{"params": "*.bias", "lr": 0.1}]})";
  const auto config =
      Config::Parse(absl::StrCat(R"({"train_batch_size": 8, )", optimizer, "}"), "ds.json", {}, 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(plan::GroupLrAt(config->scheduler(), 0, 0.1, 5), 0.1);
  EXPECT_EQ(ErrorOf(optimizer + R"(, "scheduler": {"type": "WarmupCosineLR"})"), "accepted");
  EXPECT_EQ(ErrorOf(optimizer + R"(, "scheduler": {"type": "WSD"})"), "accepted");
  EXPECT_THAT(ErrorOf(optimizer + R"(, "scheduler": {"type": "WarmupLR"})"),
              HasSubstr("WarmupLR uses the ratio of a group's lr to optimizer.params.lr"));
}

TEST(DeepSpeedDocumentsTest, TheRestOfBf16CountsOnlyWhereItIsOn) {
  const auto config = Config::Parse(
      R"({"train_batch_size": 8, "gradient_clipping": 1, "bf16": {"enabled": false,
          "bf16_optimizer_states": true, "bf16_master_weights_and_grads": true}})",
      "ds.json", {}, 1);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_FALSE(config->optimizer().bf16_states);
  EXPECT_THAT(config->warnings(), SizeIs(2));
  EXPECT_THAT(config->warnings(), Each(HasSubstr("bf16.enabled is not true")));
}

TEST(DeepSpeedDocumentsTest, AutoTakesTheSizeOfAModelThatIsNamed) {
  const std::string root = ::testing::TempDir() + "/deepspeed_documents";
  ASSERT_TRUE(MakeDirectories(root).ok());
  ASSERT_TRUE(WriteFileAtomic(root + "/config.json", R"({"n_embd": 768})").ok());
  for (const std::string& model : {absl::StrCat(R"({"pretrained": ")", root, "\"}"),
                                   absl::StrCat(R"({"config": ")", root, "/config.json\"}"),
                                   absl::StrCat(R"({"pretrained": "/nothing", "n_embd": 768})")}) {
    const auto config =
        Config::Parse(absl::StrCat(R"({"train_batch_size": 8, "model": )", model,
                                   R"(, "zero_optimization": {"reduce_bucket_size": "auto"}})"),
                      "ds.json", {}, 1);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->reduce_bucket_elements(), 768 * 768) << model;
  }
  EXPECT_THAT(ErrorOf(R"("model": {"hidden_size": -4},
                         "zero_optimization": {"reduce_bucket_size": "auto"})"),
              HasSubstr("model.hidden_size is -4; want an integer from 1 to 2^24"));
}

TEST(DeepSpeedDocumentsTest, OnlyADocumentOfDeepSpeedsIsToldOfClipping) {
  EXPECT_THAT(Config::Parse(R"({"train_batch_size": 8})", "run.json", {}, 1)->warnings(),
              IsEmpty());
  EXPECT_THAT(Config::Parse(R"({"train_batch_size": 8})", "run.json", {}, 1)->Summary(),
              HasSubstr("gradient_clipping"));
  // An older spelling is DeepSpeed's alone.
  EXPECT_THAT(
      Config::Parse(R"({"train_batch_size": 8, "bfloat16": {"enabled": false}})", "run.json", {}, 1)
          ->warnings(),
      Contains(HasSubstr("gradient_clipping is not set")));
}

}  // namespace
}  // namespace dtrain::deepspeed_documents_test
