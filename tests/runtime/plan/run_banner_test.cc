#include "runtime/plan/run_banner.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::run_banner_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

RunFacts Facts() {
  return {.version = "0.1.0",
          .run_id = "13b50037ab40",
          .run_dir = "runs/gpt",
          .launcher = "dtrain launch",
          .transport = "shm",
          .device = "CPU",
          .device_transport = "",
          .nodes = 1,
          .attempt = 0,
          .parameters = 5'123'456,
          .trained = 5'123'456,
          .tokens = 12'345'678,
          .files = 2};
}

Config Parsed(const char* text, int world_size) {
  auto config = Config::Parse(text, "run.json", {}, world_size);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

constexpr char kRun[] = R"({
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "train_steps": 3000,
  "eval_interval": 100,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
  "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10}},
  "zero_optimization": {"stage": 1}, "bf16": {"enabled": true},
  "data": {"train": "data/train.bin", "validation": "data/val.bin", "sequence_length": 128},
  "checkpoint": {"interval": 100, "keep": 3}})";

TEST(RunBanner, SaysWhatARunIs) {
  const Banner banner = RunBanner(Parsed(kRun, 2), Facts());
  EXPECT_EQ(banner.title, "dtrain 0.1.0  run 13b50037ab40 in runs/gpt");
  EXPECT_THAT(
      banner.rows,
      ElementsAre(
          Pair("ranks", "2 ranks on 1 node, CPU, over shm (dtrain launch)"),
          Pair("model", "5.12M parameters, bf16, ZeRO stage 1"),
          Pair("optimizer", "AdamW, lr 3e-4, WarmupCosineLR"),
          Pair("batch", "8 = micro-batch 4 x accumulation 1 x 2 ranks"),
          Pair("data", "12.3M tokens in 2 files (data/train.bin), rows of 128"),
          Pair("steps", "3,000, evaluated every 100"),
          Pair("checkpoints",
               "every 100 steps and at the end, the newest 3 kept, in runs/gpt/checkpoints"),
          Pair("records", "config.json and metrics/rank-0.jsonl in runs/gpt")));
}

TEST(RunBanner, SaysOfWhichEpochsTheStepsAre) {
  const auto steps = [](const char* epochs) {
    const Config waiting =
        Parsed(absl::StrCat(R"({"train_batch_size": 1, "train_epochs": )", epochs, "}").c_str(), 1);
    return RunBanner(*waiting.WithStepsPerEpoch(1000), Facts()).rows[5].second;
  };
  EXPECT_EQ(steps("3"), "3,000 (3 epochs)");
  EXPECT_EQ(steps("1"), "1,000 (1 epoch)");
  EXPECT_EQ(steps("0.5"), "500 (0.5 epochs)");
}

TEST(RunBanner, SaysWhereLocalCheckpointsGo) {
  const auto place = [](const char* keys) {
    const std::string text = absl::StrCat(R"({"train_batch_size": 1, "checkpoint": {)", keys, "}}");
    const Banner banner = RunBanner(Parsed(text.c_str(), 1), Facts());
    for (const auto& [name, row] : banner.rows) {
      if (name == "checkpoints") {
        return row;
      }
    }
    return std::string();
  };
  EXPECT_THAT(place(R"("local_dir": "/disk")"),
              ::testing::EndsWith(", in /disk of each host, copied to runs/gpt/checkpoints"));
  EXPECT_THAT(place(R"("local_dir": "/disk", "replicas": 1, "remote": "s3://b/p")"),
              ::testing::EndsWith(
                  ", in /disk of each host and the memory of the next, copied to s3://b/p"));
}

TEST(RunBanner, LeavesOutWhatIsNotKnown) {
  RunFacts facts = Facts();
  facts.launcher = "alone";
  facts.transport = "alone";
  facts.nodes = 0;
  facts.parameters = facts.trained = 0;
  facts.tokens = 0;
  const Banner banner = RunBanner(
      Parsed(R"({"train_batch_size": 4, "checkpoint": {"interval": 0, "keep": 0, "dir": "/ckpt"}})",
             1),
      facts);
  ASSERT_EQ(banner.rows.size(), 7U);
  EXPECT_THAT(banner.rows[0], Pair("ranks", "1 rank, CPU (alone)"));
  EXPECT_THAT(banner.rows[1], Pair("model", "fp32, ZeRO stage 0"));
  EXPECT_THAT(banner.rows[3], Pair("batch", "4 = micro-batch 4 x accumulation 1 x 1 rank"));
  EXPECT_EQ(banner.rows[4].first, "steps");
  EXPECT_THAT(banner.rows[5], Pair("checkpoints", "at the end, in /ckpt"));
}

TEST(RunBanner, RoundsCountsToThreeDigits) {
  const auto model = [](int64_t parameters) {
    RunFacts facts = Facts();
    facts.parameters = facts.trained = parameters;
    const std::string row = RunBanner(Parsed(kRun, 2), facts).rows[1].second;
    return row.substr(0, row.find(' '));
  };
  EXPECT_EQ(model(1), "1");
  EXPECT_EQ(model(999), "999");
  EXPECT_EQ(model(1000), "1.00K");
  EXPECT_EQ(model(9'990), "9.99K");
  EXPECT_EQ(model(9'996), "10.0K");
  EXPECT_EQ(model(99'940), "99.9K");
  EXPECT_EQ(model(99'960), "100K");
  EXPECT_EQ(model(999'600), "1.00M");
  EXPECT_EQ(model(124'439'808), "124M");
  EXPECT_EQ(model(2'000'000'000'000), "2.00T");
}

TEST(RunBanner, SaysThePeakOfEverySchedule) {
  const auto optimizer = [](const std::string& scheduler) {
    const std::string text = R"({"train_batch_size": 8, "optimizer": {"type": "AdamW",
        "params": {"lr": 3e-4}}, "scheduler": )" +
                             scheduler + "}";
    return RunBanner(Parsed(text.c_str(), 2), Facts()).rows[2].second;
  };
  EXPECT_EQ(optimizer(R"({"type": "WarmupLR", "params": {"warmup_max_lr": 0.002}})"),
            "AdamW, lr 0.002, WarmupLR");
  EXPECT_EQ(optimizer(R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.001,
                          "cycle_max_lr": 0.01}})"),
            "AdamW, lr 0.01, OneCycle");
  EXPECT_EQ(optimizer(R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.005}})"),
            "AdamW, lr 0.005, LRRangeTest");
  EXPECT_EQ(optimizer(R"({"type": "WSD"})"), "AdamW, lr 3e-4, WSD");
}

TEST(RunBanner, SaysOnlyEvaluationsThatTakePlace) {
  const auto steps = [](const char* text) {
    return RunBanner(Parsed(text, 1), Facts()).rows[5].second;
  };
  EXPECT_EQ(steps(R"({"train_batch_size": 4, "eval_interval": 50})"), "1,000")
      << "there is nothing to evaluate on";
  EXPECT_EQ(steps(R"({"train_batch_size": 4, "eval_interval": 0,
                      "data": {"validation": "v.bin"}})"),
            "1,000");
}

TEST(RunBanner, NamesFrozenWeightsTheGpuAndARestart) {
  RunFacts facts = Facts();
  facts.parameters = 7'615'616'512;
  facts.trained = 20'185'088;
  facts.device = "NVIDIA H100 80GB HBM3";
  facts.device_transport = "NCCL 2.27";
  facts.nodes = 2;
  facts.transport = "shm+tcp";
  facts.attempt = 1;
  const Banner banner = RunBanner(Parsed(kRun, 2), facts);
  EXPECT_EQ(banner.title, "dtrain 0.1.0  run 13b50037ab40 in runs/gpt, restart 1");
  EXPECT_THAT(banner.rows[0],
              Pair("ranks",
                   "2 ranks on 2 nodes, NVIDIA H100 80GB HBM3, over shm+tcp, gradients over NCCL "
                   "2.27 (dtrain launch)"));
  EXPECT_THAT(banner.rows[1],
              Pair("model", "7.62B parameters (20.2M trained), bf16, ZeRO stage 1"));
}

}  // namespace
}  // namespace dtrain::plan::run_banner_test
