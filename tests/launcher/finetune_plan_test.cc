#include "launcher/commands/finetune_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::finetune_plan_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(TemplateOf, KnowsTheFormOfTheModelsOwnTemplate) {
  // Parts of the templates that these models are published with.
  const auto name_of = [](const TemplateFiles& files) {
    const absl::StatusOr<ChosenTemplate> chosen = TemplateOf(files, "m");
    return chosen.ok() ? chosen->name + (chosen->left_out.empty() ? "" : ": ") + chosen->left_out
                       : std::string(chosen.status().message());
  };
  EXPECT_EQ(name_of({R"({"chat_template": "{{- '<|im_start|>system\nYou are Qwen, created by )"
                     R"(Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}"})",
                     ""}),
            "qwen");
  EXPECT_EQ(name_of({"", "{{ '<|im_start|>' + message.role + '\\n' }}"}), "chatml");
  EXPECT_EQ(name_of({R"({"chat_template": "<|start_header_id|>' + message['role'] + '"})", ""}),
            "llama3");
  EXPECT_EQ(name_of({R"({"chat_template": [{"name": "tool_use", "template": "x"},)"
                     R"({"name": "default", "template": "<|im_start|>"}]})",
                     ""}),
            "chatml");
  // SmolLM2, Qwen3 and Llama 3.2 write more than that.
  EXPECT_EQ(name_of({"", "{{ '<|im_start|>system\\nYou are a helpful AI assistant named S' }}"}),
            "chatml: a system text where a sample has none");
  EXPECT_EQ(name_of({"",
                     "{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>' }}"
                     "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning }}"}),
            "chatml: <think> blocks");
  EXPECT_EQ(name_of({"", "<|start_header_id|>{{- 'Cutting Knowledge Date: December 2023' }}"}),
            "llama3: dates in the system text");
}

TEST(TemplateOf, AsksForANameWhereTheFormIsNotKnown) {
  EXPECT_THAT(MessageOf(TemplateOf({R"({"eos_token": "</s>"})", ""}, "base").status()),
              AllOf(HasSubstr("base has no chat template"), HasSubstr("--template"),
                    HasSubstr("chatml, llama3, qwen, alpaca or plain")));
  EXPECT_THAT(MessageOf(TemplateOf({"", "[INST] {{ content }} [/INST]"}, "m").status()),
              HasSubstr("m has a chat template of its own form"));
  // Phi-4 has another separator than ChatML.
  EXPECT_THAT(MessageOf(TemplateOf({"", "'<|im_start|>user<|im_sep|>' + content"}, "m").status()),
              HasSubstr("m has a chat template of its own form"));
  EXPECT_THAT(MessageOf(TemplateOf({"{", ""}, "m").status()),
              HasSubstr("m/tokenizer_config.json:1"));
}

TEST(RowLength, IsWhatTheModelTakesAndNotMoreThanUsual) {
  EXPECT_EQ(*RowLength(0, {{"max_position_embeddings", 32768}}, "m"), 1024);
  EXPECT_EQ(*RowLength(0, {{"n_positions", 512}}, "m"), 512);
  EXPECT_EQ(*RowLength(2048, {{"max_position_embeddings", 32768}}, "m"), 2048);
  EXPECT_THAT(MessageOf(RowLength(600, {{"n_positions", 512}}, "m").status()),
              HasSubstr("--sequence-length 600 is longer than the 512 positions"));
  EXPECT_THAT(MessageOf(RowLength(0, {{"model_type", "vit"}}, "m").status()),
              HasSubstr("m/config.json says no number of positions"));
}

TEST(RunDirFor, IsNamedAsTheOutputAndAnotherForAnotherFolderOfTheSameName) {
  const std::string run = RunDirFor("/models/tuned");
  EXPECT_THAT(run, ::testing::MatchesRegex("runs/tuned-[0-9a-f]{8}"));
  EXPECT_EQ(RunDirFor("/models/tuned/"), run) << "the same command finds it again";
  EXPECT_EQ(RunDirFor("/models/a/../tuned//"), run);
  EXPECT_NE(RunDirFor("/others/tuned"), run);
}

TEST(AreForProgram, AConfigurationIsThatWhateverOptionsStandBeforeIt) {
  const auto are = [](const std::vector<std::string>& words) { return AreForProgram(words); };
  EXPECT_TRUE(are({"config.json"}));
  EXPECT_TRUE(are({"--set", "train_steps=4", "config.json"}));
  EXPECT_TRUE(are({"--fresh", "--run-dir=runs/a", "--accept-change", "scheduler", "config.json"}));
  EXPECT_TRUE(are({"--set", "a=b", "--deepspeed_config", "ds.conf"}));
  EXPECT_FALSE(are({}));
  EXPECT_FALSE(are({"--help"}));
  EXPECT_FALSE(are({"model", "chats.json", "--out", "tuned"}));
  EXPECT_FALSE(are({"--set", "model.x.json", "model", "chats.jsonl", "--out", "tuned"}));
  EXPECT_FALSE(are({"--lora-rank", "8", "model", "chats.json"}));
}

TEST(PrepareArguments, AreThoseOfDataPrepare) {
  FinetuneOptions options;
  options.folder = "model";
  options.data = {"a.jsonl", "b.jsonl"};
  options.chat = "qwen";
  EXPECT_THAT(PrepareArguments(options, 64, "d"),
              ElementsAre("prepare", "--out", "d", "--tokenizer", "model", "--template", "qwen",
                          "--sequence-length", "64", "--long-samples", "cut", "--skip-bad", "0",
                          "a.jsonl", "b.jsonl"));
}

TEST(RowsOf, ReadsTheRowsAndTheTokenFilesOfBothSplits) {
  const Json manifest = {{"train", {{"files", {"train.bin", "train.bin.mask"}}, {"rows", 20}}},
                         {"validation", {{"files", {"val.bin", "val.bin.mask"}}, {"rows", 2}}}};
  const auto rows = RowsOf(manifest, "d");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->train, 20);
  EXPECT_EQ(rows->validation, 2);
  EXPECT_THAT(rows->train_files, ElementsAre("d/train.bin"));
  EXPECT_THAT(rows->validation_files, ElementsAre("d/val.bin"));
  EXPECT_THAT(MessageOf(RowsOf({{"train", {{"rows", 0}}}}, "d").status()),
              HasSubstr("d/corpus.json says no rows of its split train"));
}

FinetuneOptions Options() {
  FinetuneOptions options;
  options.folder = "model";
  options.out = "tuned";
  return options;
}

constexpr int64_t kRow = 64;
const PreparedRows kRows = {20, 2, {"d/train.bin"}, {"d/val.bin"}};

TEST(FinetuneConfig, CountsStepsByEpochsAndEvaluatesOnceAnEpoch) {
  const Json config = FinetuneConfig(Options(), kRow, kRows);
  EXPECT_EQ(config["train_batch_size"], 8);
  EXPECT_EQ(config["train_micro_batch_size_per_gpu"], 4);
  EXPECT_EQ(config["train_steps"], 8) << "3 epochs of 20 rows by 8";
  EXPECT_EQ(config["eval_interval"], 3);
  EXPECT_EQ(config["eval_batches"], 1);
  EXPECT_EQ(config["model"]["pretrained"], "model");
  EXPECT_EQ(config["data"]["sequence_length"], kRow);
  EXPECT_EQ(config["finetune"]["method"], "lora");
  EXPECT_EQ(config["finetune"]["out"], "tuned");
  EXPECT_EQ(config["finetune"]["overwrite"], true);
  EXPECT_EQ(config["finetune"]["lora"]["lora_alpha"], 32);
  EXPECT_EQ(config["optimizer"]["params"]["lr"], 2e-4);
  EXPECT_FALSE(config.contains("bf16"));
}

// The schedule follows the length of the run, also where --epochs or --set makes a run that goes on
// longer: numbers in the file would be another run's.
TEST(FinetuneConfig, LeavesTheScheduleToTheLengthOfTheRun) {
  const Json scheduler = FinetuneConfig(Options(), kRow, kRows)["scheduler"];
  EXPECT_EQ(scheduler["type"], "WarmupCosineLR");
  EXPECT_EQ(scheduler["params"]["warmup_num_steps"], "auto");
  EXPECT_FALSE(scheduler["params"].contains("total_num_steps"));
}

TEST(FinetuneConfig, TheBatchIsSharedOutAmongAllRanks) {
  FinetuneOptions options = Options();
  options.ranks = 3;
  options.full = true;
  options.bf16 = true;
  options.epochs = 0.1;
  const Json config = FinetuneConfig(options, kRow, kRows);
  EXPECT_EQ(config["train_batch_size"], 9) << "8 is no multiple of 3";
  EXPECT_EQ(config["train_micro_batch_size_per_gpu"], 3);
  EXPECT_EQ(config["train_steps"], 1);
  EXPECT_EQ(config["finetune"]["method"], "full");
  EXPECT_FALSE(config["finetune"].contains("lora"));
  EXPECT_EQ(config["optimizer"]["params"]["lr"], 1e-5);
  EXPECT_EQ(config["bf16"]["enabled"], true);
  options.batch = 15;
  EXPECT_EQ(FinetuneConfig(options, kRow, kRows)["train_micro_batch_size_per_gpu"], 1)
      << "a rank has 5 rows";
}

}  // namespace
}  // namespace dtrain::launcher::finetune_plan_test
