#include "dtrain/config.h"

#include "absl/strings/str_cat.h"
#include "base/console/progress_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::config_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Config Parsed(absl::string_view text, const std::vector<std::string>& overrides = {},
              int world_size = 2) {
  const absl::StatusOr<Config> config = Config::Parse(text, "run.json", overrides, world_size);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : *Config::Parse(R"({"train_batch_size": 2})", "x", {}, 2);
}

absl::Status Failure(absl::string_view text, const std::vector<std::string>& overrides = {},
                     int world_size = 2) {
  return Config::Parse(text, "run.json", overrides, world_size).status();
}

TEST(ConfigTest, FillsDeepSpeedsDefaults) {
  const Config config = Parsed(R"({"train_batch_size": 8})");
  EXPECT_EQ(config.gradient_clipping(), 1.0);
  EXPECT_EQ(config.optimizer().lr, 1e-3);
  EXPECT_EQ(config.optimizer().beta1, 0.9);
  EXPECT_EQ(config.optimizer().beta2, 0.999);
  EXPECT_EQ(config.optimizer().eps, 1e-8);
  EXPECT_EQ(config.optimizer().weight_decay, 0);
  EXPECT_EQ(config.optimizer().kind, OptimizerConfig::Kind::kAdamW);
  EXPECT_EQ(config.scheduler().kind, SchedulerConfig::Kind::kConstant);
  EXPECT_EQ(config.zero_stage(), 0);
  EXPECT_TRUE(config.overlap_comm());
  EXPECT_EQ(config.reduce_bucket_elements(), 6553600);
  EXPECT_EQ(config.train_steps(), 1000);
  EXPECT_EQ(config.sequence_length(), 1024);
  EXPECT_EQ(config.comm_wire_dtype(), "fp32");
  EXPECT_EQ(config.comm_network().transport, "auto");
  EXPECT_EQ(config.comm_network().rdma_timeout, 18);
  EXPECT_EQ(config.comm_timeout_min_seconds(), std::nullopt) << "it follows from the connections";
  EXPECT_EQ(config.comm_hang_timeout_seconds(), std::nullopt) << "it is learnt";
  EXPECT_EQ(config.comm_hang_data_timeout_seconds(), std::nullopt);
  EXPECT_THAT(config.warnings(), IsEmpty());
}

TEST(ConfigTest, ReadsCommentsAndEveryOwnKey) {
  const Config config = Parsed(R"({
    // A run.
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2,  /* so 4 micro-batches */
    "train_steps": 300, "eval_interval": 100, "eval_batches": 4, "seed": 7, "deterministic": true,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "adamw", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-6,
                                              "weight_decay": 0.1}, "no_weight_decay": "*norm*"},
    "zero_optimization": {"reduce_bucket_size": 5e8, "overlap_comm": false},
    "data": {"train": "a.bin", "validation": ["b.bin", "c.bin"], "sequence_length": 256,
             "format": "llmc"},
    "checkpoint": {"interval": 50, "keep": 2, "dir": "/c"},
    "comm": {"timeout_s": 30, "timeout_min_s": 2.5, "hang_timeout_s": 0, "hang_data_timeout_s": 45,
             "transport": "tcp", "wire_dtype": "bf16",
             "interface": "eth1", "tcp": {"connections": 4, "tls": true},
             "rdma": {"device": "mlx5_1", "gid_index": 3, "queue_pairs": 2, "traffic_class": 106,
                      "service_level": 5, "timeout": 20, "retries": 3, "direct_bytes_min": 65536,
                      "kept_bytes_max": 0},
             "bucket_tuning": "off",
             "compression": {"type": "powersgd", "rank": 2, "start_step": 9, "min_elements": 100,
                             "error_feedback": false}},
    "metrics": {"interval": 5, "tensorboard": false},
    "model": {"layers": 4}, "sample": {"tokens": 9}
  })");
  EXPECT_EQ(config.gradient_accumulation_steps(), 4);
  EXPECT_EQ(config.train_steps(), 300);
  EXPECT_EQ(config.eval_batches(), 4);
  EXPECT_EQ(config.seed(), 7u);
  EXPECT_TRUE(config.deterministic());
  EXPECT_EQ(config.gradient_clipping(), 0.5);
  EXPECT_EQ(config.optimizer().beta2, 0.95);
  EXPECT_EQ(config.reduce_bucket_elements(), 500000000);
  EXPECT_FALSE(config.overlap_comm());
  EXPECT_THAT(config.data_train(), ::testing::ElementsAre("a.bin"));
  EXPECT_THAT(config.data_validation(), SizeIs(2));
  EXPECT_EQ(config.data_format(), "llmc");
  EXPECT_EQ(config.checkpoint_interval(), 50);
  EXPECT_EQ(config.checkpoint_keep(), 2);
  EXPECT_EQ(config.checkpoint_dir(), "/c");
  EXPECT_EQ(config.comm_timeout_seconds(), 30);
  EXPECT_EQ(config.comm_timeout_min_seconds(), 2.5);
  EXPECT_EQ(config.comm_hang_timeout_seconds(), 0);
  EXPECT_EQ(config.comm_hang_data_timeout_seconds(), 45);
  EXPECT_EQ(config.comm_compression().type, "powersgd");
  EXPECT_EQ(config.comm_compression().rank, 2);
  EXPECT_EQ(config.comm_compression().start_step, 9);
  EXPECT_EQ(config.comm_compression().min_elements, 100);
  EXPECT_FALSE(config.comm_compression().error_feedback);
  const NetworkConfig& network = config.comm_network();
  EXPECT_EQ(network.transport, "tcp");
  EXPECT_EQ(network.interface, "eth1");
  EXPECT_EQ(network.tcp_connections, 4);
  EXPECT_EQ(*config.Find("comm.tcp.tls"), true);
  EXPECT_EQ(network.rdma_device, "mlx5_1");
  EXPECT_EQ(network.rdma_gid_index, 3);
  EXPECT_EQ(network.rdma_queue_pairs, 2);
  EXPECT_EQ(network.rdma_traffic_class, 106);
  EXPECT_EQ(network.rdma_service_level, 5);
  EXPECT_EQ(network.rdma_timeout, 20);
  EXPECT_EQ(network.rdma_retries, 3);
  EXPECT_EQ(*config.Find("comm.rdma.direct_bytes_min"), 65536);
  EXPECT_EQ(*config.Find("comm.rdma.kept_bytes_max"), 0);
  EXPECT_EQ(*config.Find("comm.bucket_tuning"), "off");
  EXPECT_EQ(config.comm_wire_dtype(), "bf16");
  EXPECT_EQ(config.metrics_interval(), 5);
  EXPECT_FALSE(config.metrics_tensorboard());
  EXPECT_EQ(config.user("model")["layers"], 4);
  EXPECT_EQ(config.user("sample")["tokens"], 9);
  EXPECT_THAT(config.warnings(), IsEmpty());
}

// Two runs can be compared by what makes them what they are, even when a value is a default in one.
TEST(ConfigTest, HyperparametersAreWhatTrainingIsMadeOfAndWhatWasGiven) {
  const Json defaults = Parsed(R"({"train_batch_size": 8})").hyperparameters();
  EXPECT_EQ(defaults["train_batch_size"], 8);
  EXPECT_EQ(defaults["world_size"], 2);
  EXPECT_TRUE(defaults.contains("optimizer.params.lr"));
  EXPECT_FALSE(defaults.contains("metrics.interval")) << "neither given nor part of the training";
  EXPECT_FALSE(defaults.contains("origins"));
  const Json given = Parsed(R"({"train_batch_size": 8, "metrics": {"interval": 5},
                                "steps_per_print": 7, "model": {"layers": 4}})")
                         .hyperparameters();
  EXPECT_EQ(given["metrics.interval"], 5);
  EXPECT_EQ(given["model"]["layers"], 4);
  EXPECT_FALSE(given.contains("steps_per_print")) << "it has no effect";
}

TEST(ConfigTest, EvaluatesAtMultiplesAndAtTheEnd) {
  const Config config =
      Parsed(R"({"train_batch_size": 8, "train_steps": 25, "eval_interval": 10})");
  std::vector<int64_t> at;
  for (int64_t step = 0; step <= 25; ++step) {
    if (config.evaluate_at(step)) {
      at.push_back(step);
    }
  }
  EXPECT_THAT(at, ::testing::ElementsAre(10, 20, 25));
  EXPECT_FALSE(Parsed(R"({"train_batch_size": 8, "train_steps": 25})").evaluate_at(25));
}

TEST(ConfigTest, WeightDecayIsExemptByNamePattern) {
  const Config config = Parsed(
      R"({"train_batch_size": 8, "optimizer": {"params": {"weight_decay": 0.1},
          "no_weight_decay": ["*.bias", "*norm*"]}})");
  const auto decay = [&](const char* name) {
    return config.optimizer().SettingsFor(name, {4}).weight_decay;
  };
  EXPECT_EQ(decay("h.0.fc.bias"), 0);
  EXPECT_EQ(decay("h.0.norm1.weight"), 0);
  EXPECT_EQ(decay("h.0.fc.weight"), 0.1);
  EXPECT_EQ(decay("bias"), 0.1);
}

TEST(ConfigTest, UnknownKeyNamesTheNearestAndTheLine) {
  const absl::Status typo = Failure("{\n\"train_batch_size\": 8,\n\"gradient_cliping\": 1}");
  EXPECT_EQ(typo.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(typo.message()),
            "run.json:3: unknown key \"gradient_cliping\"; nearest known key: "
            "\"gradient_clipping\" (dtrain config docs lists all)");
  EXPECT_THAT(std::string(Failure(R"({"stage": 1})").message()),
              HasSubstr("nearest known key: \"zero_optimization.stage\""));
  EXPECT_THAT(std::string(Failure(R"({"zero_optimisation": {}})").message()),
              HasSubstr("nearest known key: \"zero_optimization\""));
  EXPECT_THAT(std::string(Failure(R"({"optimizer": {"params": {"learning_rate": 1}}})").message()),
              HasSubstr("unknown key \"optimizer.params.learning_rate\""));
  EXPECT_THAT(std::string(Failure("{}", {"optimizer.params.l=1"}).message()),
              HasSubstr("--set optimizer.params.l=1: unknown key \"optimizer.params.l\"; nearest "
                        "known key: \"optimizer.params.lr\""));
}

TEST(ConfigTest, WrongTypesAndRangesNameKeyValueAndRange) {
  EXPECT_EQ(std::string(Failure(R"({"train_steps": 1.5})").message()),
            "run.json:1: train_steps is 1.5; want an integer, 1 or more");
  EXPECT_EQ(
      std::string(Failure(R"({"optimizer": {"params": {"betas": [0.9, 1.0]}}})").message()),
      "run.json:1: optimizer.params.betas is [0.9,1.0]; want two numbers from 0 to below 1, or "
      "\"auto\"");
  EXPECT_THAT(std::string(Failure(R"({"seed": "auto"})").message()),
              HasSubstr("seed is \"auto\"; want an integer, 0 or more"));
  EXPECT_THAT(std::string(Failure(R"({"data": {"format": "parquet"}})").message()),
              HasSubstr("data.format is \"parquet\"; want one of auto, llmc, nanogpt-u16"));
  EXPECT_THAT(std::string(Failure(R"({"data": 4})").message()), HasSubstr("want an object"));
  EXPECT_THAT(std::string(Failure("[1]").message()), HasSubstr("one JSON object"));
  EXPECT_THAT(std::string(Failure("{\n\"a\": }").message()), HasSubstr("run.json:2:6"));
  EXPECT_THAT(std::string(Failure(R"({"seed": 1, "seed": 2})").message()), HasSubstr("twice"));
}

TEST(ConfigTest, OffloadedWeightsNeedStageThreeAndAFolder) {
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "zero_optimization":
                                      {"stage": 2, "offload_param": {"device": "cpu"}}})")
                              .message()),
              HasSubstr("offload_param.device \"cpu\" needs zero_optimization.stage 3"));
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "zero_optimization":
                                      {"stage": 3, "offload_param": {"device": "nvme"}}})")
                              .message()),
              HasSubstr("needs zero_optimization.offload_param.nvme_path"));
}

TEST(ConfigTest, ReplicasNeedADiskOfEachHost) {
  EXPECT_THAT(
      std::string(Failure(R"({"train_batch_size": 8, "checkpoint": {"replicas": 1}})").message()),
      HasSubstr("checkpoint.replicas 1 needs checkpoint.local_dir"));
}

TEST(ConfigTest, AnObjectStoreIsBehindAFolderAndNotInItsPlace) {
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8,
                                      "checkpoint": {"remote": "gs://bucket/run"}})")
                              .message()),
              HasSubstr("checkpoint.remote is \"gs://bucket/run\"; allowed: a folder, or s3://"));
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8,
                                      "checkpoint": {"dir": "s3://bucket/run"}})")
                              .message()),
              AllOf(HasSubstr("checkpoint.dir is \"s3://bucket/run\"; allowed: a folder"),
                    HasSubstr("set checkpoint.remote")));
}

TEST(ConfigTest, ASecondShardingNeedsStageThreeAndADivisorOfTheWorld) {
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8,
                                      "zero_optimization": {"zero_hpz_partition_size": 2}})")
                              .message()),
              HasSubstr("zero_hpz_partition_size 2 needs zero_optimization.stage 3"));
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8,
                              "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}})")
                              .message()),
              HasSubstr("does not divide the world size"));
}

TEST(ConfigTest, QuantisedTravelNeedsTheStageThatDoesIt) {
  EXPECT_EQ(std::string(Failure(R"({"train_batch_size": 8,
                 "zero_optimization": {"stage": 2, "zero_quantized_weights": true}})")
                            .message()),
            "run.json:2: zero_optimization.zero_quantized_weights needs zero_optimization.stage 3, "
            "which gathers weights; got stage 2");
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8,
                 "zero_optimization": {"stage": 1, "zero_quantized_gradients": true}})")
                              .message()),
              HasSubstr("got stage 1; at stages 0 and 1, set comm.compression.type \"int8\""));
  const Config config = Parsed(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
      "zero_quantized_weights": true, "zero_quantized_gradients": true,
      "stage3_param_persistence_threshold": 5, "stage3_model_persistence_threshold": 7}})");
  EXPECT_TRUE(config.quantized_weights());
  EXPECT_TRUE(config.quantized_gradients());
  EXPECT_EQ(config.persistence_limits().parameter_max, 5);
  EXPECT_EQ(config.persistence_limits().model_max, 7);
  EXPECT_EQ(Parsed(R"({"train_batch_size": 8})").persistence_limits().parameter_max, 100000);
}

TEST(ConfigTest, RefusesByNameWhatWouldChangeNumbersOrMemory) {
  for (const char* text :
       {R"({"train_batch_size": 8, "zero_optimization": {"mics_shard_size": 8}})",
        R"({"train_batch_size": 8, "bf16": {"enabled": true, "bf16_optimizer_states": true},
            "optimizer": {"type": "Lamb"}})",
        R"({"train_batch_size": 8, "fp16": {"enabled": true, "auto_cast": true}})",
        R"({"train_batch_size": 8, "torch_autocast": {"enabled": true}})",
        R"({"train_batch_size": 8, "optimizer": {"type": "OneBitLamb"}})",
        R"({"train_batch_size": 8, "optimizer": {"params": {"max_grad_norm": 1}}})",
        R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
            "zero_quantized_nontrainable_weights": true}})",
        R"({"train_batch_size": 8, "sparse_attention": {"mode": "fixed"}})",
        R"({"train_batch_size": 8, "amp": {"enabled": true, "opt_level": "O1"}})",
        R"({"train_batch_size": 8, "checkpoint": {"load_universal": true}})"}) {
    EXPECT_EQ(Failure(text).code(), absl::StatusCode::kUnimplemented) << text;
  }
  EXPECT_EQ(
      std::string(Failure(R"({"train_batch_size": 8, "zero_optimization": {"mics_shard_size": 8}})")
                      .message()),
      "run.json:1: zero_optimization.mics_shard_size = 8 is not supported. dtrain divides states "
      "among all ranks, which takes the least memory. To keep later gathers of a step inside small "
      "groups, set zero_hpz_partition_size.");
  // The harmless value of the same keys passes.
  EXPECT_TRUE(Failure(R"({"train_batch_size": 8, "bf16": {"enabled": false},
                          "zero_optimization": {"stage": 0, "offload_param": {"device": "none"}}})")
                  .ok());
}

TEST(ConfigTest, PrecisionIsOneOfThree) {
  using Kind = PrecisionConfig::Kind;
  EXPECT_EQ(Parsed(R"({"train_batch_size": 8})").precision().kind, Kind::kFloat32);
  EXPECT_EQ(Parsed(R"({"train_batch_size": 8, "bfloat16": {"enabled": true}})").precision().kind,
            Kind::kBFloat16);
  const Config fp16 = Parsed(R"({"train_batch_size": 8, "bf16": {"enabled": "auto"},
      "fp16": {"enabled": true, "loss_scale_window": 500, "hysteresis": 3, "min_loss_scale": 2,
               "initial_scale_power": 12, "consecutive_hysteresis": true}})");
  EXPECT_EQ(fp16.precision().kind, Kind::kFloat16);
  EXPECT_EQ(fp16.precision().loss_scale, 0);
  EXPECT_EQ(fp16.precision().initial_scale_power, 12);
  EXPECT_EQ(fp16.precision().loss_scale_window, 500);
  EXPECT_EQ(fp16.precision().hysteresis, 3);
  EXPECT_TRUE(fp16.precision().consecutive_hysteresis);
  EXPECT_EQ(fp16.precision().min_loss_scale, 2);
  const absl::Status both =
      Failure(R"({"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}})");
  EXPECT_EQ(both.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(both.message()),
              ::testing::AllOf(HasSubstr("bf16.enabled"), HasSubstr("fp16.enabled")));
}

TEST(ConfigTest, ReadsOneCycleAndWarmupStableDecay) {
  using Kind = SchedulerConfig::Kind;
  const SchedulerConfig cycle = Parsed(R"({"train_batch_size": 8, "scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 30,
                 "cycle_first_stair_count": 3, "cycle_momentum": false}}})")
                                    .scheduler();
  EXPECT_EQ(cycle.kind, Kind::kOneCycle);
  EXPECT_EQ(cycle.cycle.max_lr, 1e-2);
  EXPECT_EQ(cycle.cycle.second_steps, 30) << "as the first";
  EXPECT_EQ(cycle.cycle.second_stairs, 3);
  EXPECT_FALSE(cycle.cycle.momentum);
  const SchedulerConfig wsd =
      Parsed(R"({"train_batch_size": 8, "train_steps": 500, "scheduler": {"type": "wsd"}})")
          .scheduler();
  EXPECT_EQ(wsd.kind, Kind::kWarmupStableDecay);
  EXPECT_EQ(wsd.total_num_steps, 500);
  EXPECT_EQ(wsd.decay_num_steps, 50);
  EXPECT_EQ(wsd.warmup_num_steps, 10);
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "scheduler": {"type": "OneCycle",
      "params": {"cycle_min_lr": 1}}})")
                              .message()),
              HasSubstr("cycle_max_lr"));
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "train_steps": 20, "scheduler": {
      "type": "WSD", "params": {"warmup_num_steps": 15, "decay_num_steps": 6}}})")
                              .message()),
              HasSubstr("15 + decay_num_steps 6"));
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "scheduler": {"type": "WSD",
      "params": {"cycle_min_lr": 1}}})")
                              .message()),
              HasSubstr("does not belong to WSD"));
}

TEST(ConfigTest, WarnsOnceAboutKeysThatOnlyObserveOrTune) {
  const Config config = Parsed(R"({"train_batch_size": 8, "wall_clock_breakdown": true,
    "steps_per_print": 10, "gradient_clipping": 1.0, "bfloat16": {"enabled": false}})");
  EXPECT_THAT(config.warnings(), SizeIs(2));
  EXPECT_THAT(config.warnings(), Contains(HasSubstr("wall_clock_breakdown = true has no effect")));
  EXPECT_THAT(config.warnings(),
              Contains(HasSubstr("bfloat16.enabled is an older spelling of bf16.enabled")));
}

TEST(ConfigTest, SetOverridesInOrderAndParsesJson) {
  const Config config =
      Parsed(R"({"train_batch_size": 8, "model": {"layers": 4, "deep": {"a": 1}}})",
             {"train_steps=5", "train_steps=6", "data.train=x.bin", "model.layers=12",
              "model.deep.b=[1,2]", "model.name=small", "optimizer.params={\"lr\": 0.5}"});
  EXPECT_EQ(config.train_steps(), 6);
  EXPECT_THAT(config.data_train(), ::testing::ElementsAre("x.bin"));
  EXPECT_EQ(config.user("model"),
            Json::parse(R"({"layers":12,"deep":{"a":1,"b":[1,2]},"name":"small"})"));
  EXPECT_EQ(config.optimizer().lr, 0.5);
  EXPECT_EQ(config.OriginOf("train_steps"), ConfigOrigin::kSet);
  EXPECT_EQ(config.OriginOf("train_batch_size"), ConfigOrigin::kFile);
  EXPECT_EQ(config.OriginOf("gradient_accumulation_steps"), ConfigOrigin::kDerived);
  EXPECT_EQ(config.OriginOf("gradient_clipping"), ConfigOrigin::kDefault);
  EXPECT_THAT(std::string(Failure("{}", {"train_steps"}).message()), HasSubstr("want KEY=VALUE"));
  EXPECT_THAT(std::string(Failure(R"({"model": {"a": 1}})", {"model.a.b=1"}).message()),
              HasSubstr("model.a is not an object"));
}

TEST(ConfigTest, FillsAutoByTheStatedRules) {
  const Config config = Parsed(R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_steps": 500,
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto",
      "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
    "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"},
    "model": {"hidden_size": 256}})");
  EXPECT_EQ(config.global_batch(), 8);
  EXPECT_EQ(config.gradient_accumulation_steps(), 1);
  EXPECT_EQ(config.gradient_clipping(), 1.0);
  EXPECT_EQ(config.optimizer().lr, 1e-3);
  EXPECT_EQ(config.scheduler().warmup_min_lr, 0);
  EXPECT_EQ(config.scheduler().warmup_max_lr, 1e-3);
  EXPECT_EQ(config.scheduler().warmup_num_steps, 10);
  EXPECT_EQ(config.scheduler().total_num_steps, 500);
  EXPECT_EQ(config.reduce_bucket_elements(), 65536);
  EXPECT_EQ(*config.Find("zero_optimization.stage3_prefetch_bucket_size"), 50000000);
  EXPECT_EQ(*config.Find("bf16.enabled"), false);
  const Config alone = Parsed(R"({"train_batch_size": 8, "zero_optimization":
      {"stage": 3, "reduce_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}})");
  EXPECT_EQ(alone.reduce_bucket_elements(), 6553600);
  EXPECT_EQ(alone.persistence_limits().parameter_max, 100000);
}

TEST(ConfigTest, SchedulerTakesOnlyItsOwnParameters) {
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "scheduler": {"type": "WarmupLR",
      "params": {"total_num_steps": 5}}})")
                              .message()),
              HasSubstr("scheduler.params.total_num_steps does not belong to WarmupLR, which "
                        "takes warmup_min_lr"));
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "scheduler": {
      "params": {"warmup_num_steps": 5}}})")
                              .message()),
              HasSubstr("without scheduler.type"));
  const Config config = Parsed(R"({"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR",
      "params": {"total_num_steps": 77}}})");
  EXPECT_EQ(config.train_steps(), 77);
}

TEST(ConfigTest, CompressionIsOffUnlessAskedForAndItsKeysAreChecked) {
  const Config plain = Parsed(R"({"train_batch_size": 8})");
  EXPECT_EQ(plain.comm_compression().type, "none");
  EXPECT_TRUE(plain.comm_compression().error_feedback);
  const auto failure = [](const char* compression) {
    return std::string(Failure(absl::StrCat(R"({"train_batch_size": 8, "comm": {"compression": )",
                                            compression, "}}"))
                           .message());
  };
  EXPECT_THAT(failure(R"({"rnk": 4})"), HasSubstr("comm.compression.rank"));
  EXPECT_THAT(failure(R"({"type": "topk"})"), HasSubstr("one of none, powersgd, int8"));
  EXPECT_THAT(failure(R"({"rank": 0})"), HasSubstr("from 1 to 64"));
}

TEST(ConfigTest, OneThingHasOneWireType) {
  EXPECT_EQ(
      Parsed(R"({"train_batch_size": 8, "communication_data_type": "fp16"})").comm_wire_dtype(),
      "fp16");
  EXPECT_EQ(
      Parsed(R"({"train_batch_size": 8, "communication_data_type": "bfp16"})").comm_wire_dtype(),
      "bf16");
  EXPECT_THAT(std::string(Failure(R"({"train_batch_size": 8, "communication_data_type": "bf16",
      "comm": {"wire_dtype": "fp32"}})")
                              .message()),
              HasSubstr("two names of the same setting"));
}

TEST(ConfigTest, ValuesInForceReadBackAsTheSameConfiguration) {
  const Config config = Parsed(R"({"train_batch_size": 8, "model": {"a": 1},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}})");
  const Json saved = config.values_in_force();
  const Config again = Parsed(DumpJson(saved, 2));
  Json a = saved;
  Json b = again.values_in_force();
  EXPECT_EQ(a["origins"]["train_batch_size"], "file");
  EXPECT_EQ(a["origins"]["gradient_clipping"], "default");
  a.erase("origins");
  b.erase("origins");
  EXPECT_EQ(a, b);
  EXPECT_THAT(config.Summary(), HasSubstr("global batch 8 = micro-batch 4 x accumulation 1 x 2"));
}

TEST(ConfigTest, ConsoleColumnsAreThoseOfTheLineAndMetricsOfTheProgram) {
  EXPECT_EQ(Parsed(R"({"train_batch_size": 8})").metrics_console(), DefaultProgressColumns());
  const Config own = Parsed(R"({"train_batch_size": 8,
                                "metrics": {"console": ["loss", "own/accuracy",
                                                        "images_per_s"]}})");
  EXPECT_THAT(own.metrics_console(), ElementsAre("loss", "own/accuracy", "images_per_s"));
  EXPECT_THAT(own.warnings(), IsEmpty());
  const Config others = Parsed(R"({"train_batch_size": 8,
                                   "metrics": {"console": ["loss", "mse", "mae", "map", "iou",
                                                           "ema"]}})");
  EXPECT_THAT(others.warnings(), IsEmpty());
  const Config short_typo = Parsed(R"({"train_batch_size": 8, "metrics": {"console": "los"}})");
  EXPECT_THAT(short_typo.warnings(), ElementsAre(HasSubstr("did you mean \"loss\"?")));
  const Config typo = Parsed(R"({"train_batch_size": 8, "metrics": {"console": "grad_nrom"}})");
  EXPECT_THAT(typo.warnings(), ElementsAre(HasSubstr("did you mean \"grad_norm\"?")));
}

}  // namespace
}  // namespace dtrain::config_test
