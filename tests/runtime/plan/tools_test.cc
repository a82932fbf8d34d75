// dtrain-data and dtrain-config as programs: output and exit codes.
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/token_file.h"
#include "tests/runtime/plan/data/parquet/parquet_bytes.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::tools_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Result {
  int code = -1;
  std::string output;  // stdout and stderr.
};

Result RunCommand(const std::string& command) {
  Result result;
  FILE* pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  if (pipe == nullptr) {
    return result;
  }
  char chunk[4096];
  size_t n = 0;
  while ((n = fread(chunk, 1, sizeof(chunk), pipe)) > 0) {
    result.output.append(chunk, n);
  }
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

class ToolsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(folder_.path() + "/" + name, std::ios::binary) << content;
    return folder_.path() + "/" + name;
  }
  TempFolder folder_;
  const std::string data_ = DTRAIN_DATA_PROGRAM;
  const std::string config_ = DTRAIN_CONFIG_PROGRAM;
  const std::string plan_ = DTRAIN_PLAN_PROGRAM;
};

TEST_F(ToolsTest, PreparesAndShowsACorpus) {
  Write("a.txt", "first file\n");
  Write("b.txt", "second file\n");
  Write("c.rs", "third\n");
  const std::string out = folder_.path() + "/out";
  const Result made =
      RunCommand(absl::StrCat(data_, " prepare --out ", out, " --ext txt ", folder_.path()));
  EXPECT_EQ(made.code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("train               1"));
  EXPECT_THAT(made.output, HasSubstr("validation          1"));
  const Result shown = RunCommand(absl::StrCat(data_, " show ", out, "/train.bin"));
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("format      llm.c, u16"));
  EXPECT_THAT(shown.output, HasSubstr("vocabulary  256"));
  EXPECT_THAT(shown.output, HasSubstr(" file\\n\\0"));
}

TEST_F(ToolsTest, AVocabularyIsLearntFromTheTextsOfAFolderAlone) {
  folder_.Write("texts/a.txt", "a text a text a text\n");
  folder_.Write("texts/b.dat", "\xff\xfe and more");
  folder_.Write("texts/c.docx", "PK\x03\x04 and more");
  const Result made =
      RunCommand(absl::StrCat(data_, " train-tokenizer --vocab-size 300 --out ", folder_.path(),
                              "/vocabulary ", folder_.path(), "/texts"));
  EXPECT_EQ(made.code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("documents   1\nbytes       21\n"));
  EXPECT_THAT(made.output, HasSubstr("left out    2 files that are no text, 0 too long, 0 not "
                                     "readable\n"));
}

// 41 tokens of 2 bytes are 10 windows of 4: 3 epochs by 4 samples are 7.5 steps.
TEST_F(ToolsTest, ACheckCountsTheStepsOfEpochsWhereTheTokenFilesAre) {
  const std::string tokens =
      Write("train.bin", absl::StrCat(MakeTokenHeader(41, 256), std::string(82, '\1')));
  const std::string check = absl::StrCat(
      config_, " check ", Write("epochs.json", R"({"train_batch_size": 4, "train_epochs": 3,
                       "scheduler": {"type": "WarmupCosineLR"}, "data": {"sequence_length": 4}})"));
  const Result counted = RunCommand(absl::StrCat(check, " --set data.train=", tokens));
  EXPECT_EQ(counted.code, 0) << counted.output;
  EXPECT_THAT(counted.output, ::testing::ContainsRegex("train_steps +8  \\(derived\\)"));
  EXPECT_THAT(counted.output, ::testing::ContainsRegex("total_num_steps +8  \\(derived\\)"));
  const std::pair<std::string, std::string> cases[] = {
      {"", "(data.train names no token file)"},
      {" --set data.train=/nowhere.bin", "/nowhere.bin"},
      {" --set data.train=s3://bucket/train.bin", "s3://bucket/train.bin"}};
  for (const auto& [more, says] : cases) {
    const Result open = RunCommand(check + more);
    EXPECT_EQ(open.code, 0) << open.output;
    EXPECT_THAT(open.output, HasSubstr("note: train_epochs 3: the number of steps is known when "
                                       "the run opens its data ("))
        << open.output;
    EXPECT_THAT(open.output, HasSubstr(says));
    EXPECT_THAT(open.output, Not(HasSubstr("train_steps ")));
  }
}

TEST_F(ToolsTest, BadInputEndsWith64AndOneLine) {
  const std::string cut = Write("cut.bin", "abc");
  Write("config.json", "{}");  // So that the folder looks like one of a model.
  const std::pair<std::string, std::string> cases[] = {
      {absl::StrCat(data_, " show ", cut), "cut.bin: it ends at byte 3, inside the 1024-byte"},
      {absl::StrCat(data_, " show /nothing"), "cannot open /nothing"},
      {absl::StrCat(data_, " show --format x ", cut), "allowed: auto, llmc, nanogpt-u16"},
      {absl::StrCat(data_, " prepare --out ", folder_.path(), "/o /nothing"),
       "/nothing is not there"},
      {absl::StrCat(data_, " prepare --end-token x --out ", folder_.path(), "/o ", folder_.path()),
       "--end-token is the token of a vocabulary, and needs --tokenizer"},
      {absl::StrCat(data_, " prepare --max-mb 0 --out ", folder_.path(), "/o"), "--max-mb is 0"},
      {absl::StrCat(data_, " prepare --max-mb 2048 --out ", folder_.path(), "/o"),
       "--max-mb is 2048"},
      {absl::StrCat(data_, " train-tokenizer --out ", folder_.path(), " ", cut),
       "is the folder of a model, whose tokenizer would be replaced"},
      {absl::StrCat(data_, " train-tokenizer --out ", folder_.path(), "/t ",
                    Write("rows.parquet", parquet::TextParquet({{"one", "\xff"}}))),
       "rows.parquet, row 2: a text in it is not UTF-8"},
      {absl::StrCat(data_, " train-tokenizer --out ", folder_.path(), "/t ",
                    Write("binary.txt", std::string("a\0b", 3))),
       "binary.txt: it is no text: byte 1 is 0"},
      {absl::StrCat(config_, " check /nothing"), "cannot open /nothing"},
      {absl::StrCat(config_, " check ", Write("c.json", R"({"train_batch_size": 500,
          "train_micro_batch_size_per_gpu": 4})"),
                    " --world-size 24"),
       "nearest: 480 or 576"},
      {absl::StrCat(config_, " check ", Write("d.json", R"({"gradient_cliping": 1})")),
       "nearest known key: \"gradient_clipping\""},
      {absl::StrCat(config_, " check ", Write("e.json", R"({"train_steps": 5})"),
                    " --set num_train_epochs=3"),
       "--set num_train_epochs=3: unknown key \"num_train_epochs\"; nearest known key: "
       "\"train_epochs\""},
      {absl::StrCat(config_, " check ", Write("f.json", R"({"train_batch_size": 1,
          "train_steps": 5, "train_epochs": 3})")),
       "train_steps 5 and train_epochs 3 both say how long the run is; keep one"}};
  for (const auto& [command, says] : cases) {
    const Result result = RunCommand(command);
    EXPECT_EQ(result.code, 64) << command << "\n" << result.output;
    EXPECT_THAT(result.output, HasSubstr(says));
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  }
  for (const std::string& usage :
       {data_, data_ + " prepare", config_, config_ + " check", config_ + " unknown"}) {
    EXPECT_EQ(RunCommand(usage).code, 64) << usage;
  }
  EXPECT_EQ(RunCommand(data_ + " prepar").output,
            "dtrain data: unknown command prepar; did you mean prepare? There are: prepare, show, "
            "train-tokenizer\n");
  EXPECT_EQ(RunCommand(plan_ + " --wordl-size 2").output,
            "dtrain plan: unknown option --wordl-size; did you mean --world-size?; see dtrain plan "
            "--help\n");
  EXPECT_EQ(
      RunCommand(config_ + " check --al").output,
      "dtrain config check: unknown option --al; did you mean --all?; see dtrain config check "
      "--help\n");
  EXPECT_EQ(RunCommand(config_).output,
            "dtrain config: no command given; there are: check, schema, docs\n");
}

// Each help has an example, and each option says its default or that it must be given.
TEST_F(ToolsTest, HelpHasAnExampleAndTheDefaultOfEachOption) {
  for (const std::string& command :
       {data_ + " prepare", data_ + " show", config_ + " check", config_ + " docs", plan_}) {
    const Result result = RunCommand(command + " --help");
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_THAT(result.output, HasSubstr("Example")) << command;
    // Options begin in the third column; their texts may go on in further lines.
    std::vector<std::string> options;
    bool inside = false;
    for (const absl::string_view line : absl::StrSplit(result.output, '\n')) {
      EXPECT_LE(line.size(), 80u) << line;
      if (absl::StartsWith(line, "Options:") || absl::StartsWith(line, "Arguments:")) {
        inside = true;
      } else if (absl::StartsWith(line, "Example")) {
        inside = false;
      } else if (inside && absl::StartsWith(line, "  ") && line.size() > 2 && line[2] != ' ') {
        options.emplace_back(line);
      } else if (inside && !options.empty()) {
        absl::StrAppend(&options.back(), " ", line);
      }
    }
    EXPECT_GE(options.size(), 2u) << result.output;
    for (const std::string& option : options) {
      const std::string name = option.substr(2, option.find(' ', 2) - 2);  // FILE, in the usage.
      const bool said = absl::StrContains(option, "Default") ||
                        absl::StrContains(option, "Required.") ||
                        absl::StrContains(option, "--help") ||
                        absl::StrContains(result.output, absl::StrCat("[options] ", name));
      EXPECT_TRUE(said) << command << ": " << option;
    }
  }
  for (const std::string& command : {data_, config_}) {
    EXPECT_THAT(RunCommand(command + " --help").output, HasSubstr("Examples:"));
  }
}

TEST_F(ToolsTest, CheckPrintsTheBatchAndWhereValuesComeFrom) {
  const std::string file = Write("c.json", R"({"train_batch_size": 48, "dump_state": true})");
  const Result result = RunCommand(absl::StrCat(config_, " check --set eval_interval=3 ", file,
                                                " --world-size 3 --set train_steps=7 --set "
                                                "gradient_accumulation_steps=4 --all"));
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("global batch 48 = micro-batch 4 x accumulation 4 x 3"));
  EXPECT_THAT(result.output, HasSubstr("note: "));
  EXPECT_THAT(result.output, HasSubstr("\"train_steps\": \"--set\""));
  EXPECT_THAT(result.output, HasSubstr("identity "));
  const Result plain = RunCommand(absl::StrCat(config_, " check ", file));
  EXPECT_THAT(plain.output, HasSubstr("x 1 ranks\n"));
  EXPECT_THAT(plain.output, Not(HasSubstr("\"origins\""))) << "only with --all";
}

TEST_F(ToolsTest, PlansMemoryAndTheNumberOfRanks) {
  const Result gpus = RunCommand(plan_ + " --params 80e9 --gpu-memory 80GB");
  EXPECT_EQ(gpus.code, 0) << gpus.output;
  EXPECT_THAT(gpus.output, ::testing::ContainsRegex("stage 3 +23 "));
  EXPECT_THAT(gpus.output, ::testing::ContainsRegex("inference +3 "));
  EXPECT_THAT(gpus.output, HasSubstr("80B parameters in bf16 with fp32 masters: 18 bytes each"));
  EXPECT_THAT(gpus.output,
              HasSubstr("Training needs at least 23 ranks, with zero_optimization.stage 3."));
  const Result never = RunCommand(plan_ + " --params 80e9 --gpu-memory 1MB");
  EXPECT_EQ(never.code, 0) << never.output;
  EXPECT_THAT(never.output, HasSubstr("Training does not fit on any number of ranks."));
  const std::string file = Write("run.json", R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 1}, "data": {"sequence_length": 128},
      "model": {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
                "num_attention_heads": 4, "vocab_size": 256}})");
  const Result here = RunCommand(absl::StrCat(plan_, " ", file, " --world-size 4"));
  EXPECT_EQ(here.code, 0) << here.output;
  EXPECT_THAT(here.output, HasSubstr("memory of each rank, with 4 ranks at ZeRO stage 1:"));
  EXPECT_THAT(here.output, HasSubstr("masters"));
  const Result short_form = RunCommand(plan_ + " --params 80B --gpu-memory 80GB");
  EXPECT_EQ(short_form.output, gpus.output);
}

TEST_F(ToolsTest, APlanEndsWithItsTotalAndAMemorySizeAloneIsAnsweredByNumbersOfRanks) {
  const Result one = RunCommand(plan_ + " --params 1e6 --dtype fp32");
  EXPECT_EQ(one.code, 0) << one.output;
  EXPECT_THAT(one.output, HasSubstr("memory of each rank, with 1 rank at ZeRO stage 0:\n"));
  for (const char* const row :
       {"weights +4.0 MB\n", "gradients +4.0 MB\n", "moments +8.0 MB\n", "total +16.0 MB\n"}) {
    EXPECT_THAT(one.output, ::testing::ContainsRegex(row));
  }
  EXPECT_THAT(one.output, Not(HasSubstr("masters"))) << "fp32 has none";
  const Result ranks = RunCommand(plan_ + " --params 1e6 --dtype fp32 --gpu-memory 1GB");
  EXPECT_THAT(ranks.output, Not(HasSubstr("memory of each rank")));
  EXPECT_THAT(ranks.output, HasSubstr("each has 1.00 GB of memory (25 % is added to the plan)"));
  EXPECT_THAT(ranks.output,
              HasSubstr("Training needs at least 1 rank, with zero_optimization.stage 0."));
  // 16 MB and a tenth fit just so; with more added stage 1 is needed.
  const auto with = [&](const char* reserve) {
    return RunCommand(
        absl::StrCat(plan_, " --params 1e6 --dtype fp32 --gpu-memory 17.6MB --reserve ", reserve));
  };
  EXPECT_THAT(with("0.0999").output, HasSubstr("at least 1 rank, with"));
  EXPECT_THAT(with("0.11").output, HasSubstr("at least 2 ranks, with zero_optimization.stage 1."));
  EXPECT_EQ(with("10").code, 0);
  EXPECT_THAT(RunCommand(plan_ + " --params 1e6 --dtype fp16").output,
              HasSubstr("1M parameters in fp16 with fp32 masters: 18 bytes each to train\n"));
  EXPECT_THAT(RunCommand(plan_ + " --params 1").output, HasSubstr("1e-06M parameters"));
  EXPECT_THAT(RunCommand(plan_ + " --params 1e15").output, HasSubstr("1e+06B parameters"));
}

TEST_F(ToolsTest, APlanShowsWhatIsElsewhere) {
  const std::string file = Write("run.json", R"({"train_batch_size": 8, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 1}, "data": {"sequence_length": 128},
      "model": {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 8,
                "num_attention_heads": 4, "vocab_size": 256}})");
  // --set takes one value; what follows is the file.
  const auto planned = [&](const std::string& settings) {
    return RunCommand(absl::StrCat(plan_, settings, " ", file)).output;
  };
  EXPECT_THAT(planned(" --set train_batch_size=4"), Not(HasSubstr("offloaded")));
  const std::string states = " --set zero_optimization.offload_optimizer.device=cpu";
  const std::string far = "outside the memory above)\n";
  EXPECT_THAT(planned(states), HasSubstr("(optimizer states and fp32 masters, " + far));
  EXPECT_THAT(planned(states), Not(HasSubstr("host memory"))) << "the host is where it trains";
  EXPECT_THAT(planned(states + " --set device=cuda"),
              HasSubstr("(offloaded states and their buffers)\n"));
  EXPECT_THAT(planned(states), Not(HasSubstr("(activations, ")));
  EXPECT_THAT(planned(" --set activation_checkpointing.mode=full"
                      " --set activation_checkpointing.cpu_checkpointing=true"),
              HasSubstr("(activations, " + far));
  EXPECT_THAT(planned(" --params 3e6"), HasSubstr("3M parameters")) << "in the model's place";
}

TEST_F(ToolsTest, DocsPrintsEachPageAndSchemaASchema) {
  const std::pair<const char*, const char*> pages[] = {
      {"", "CONFIG.md"}, {" metrics", "METRICS.md"}, {" environment", "ENVIRONMENT.md"}};
  for (const auto& [page, file] : pages) {
    const Result result = RunCommand(absl::StrCat(config_, " docs", page));
    EXPECT_EQ(result.code, 0) << file;
    EXPECT_EQ(result.output, *ReadFile(absl::StrCat(DTRAIN_SOURCE_DIR "/docs/", file))) << file;
  }
  const Result schema = RunCommand(config_ + " schema");
  EXPECT_EQ(schema.code, 0);
  const auto json = ParseJson(schema.output, "schema");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_FALSE((*json)["properties"]["train_batch_size"].is_null());
}

TEST_F(ToolsTest, ShowSaysWhatAFileHasAndNoMore) {
  const std::string raw = Write("raw.bin", std::string("\x07\0\x08\0\x09\0", 6));
  const Result shown = RunCommand(absl::StrCat(data_, " show --format nanogpt-u16 --head 2 ", raw));
  EXPECT_EQ(shown.output, absl::StrCat("file        ", raw,
                                       "\nformat      nanogpt (no header), u16\ntokens      3\n"
                                       "vocabulary  not stated\nhead        7 8\n"));
  std::string forty;
  std::string first;
  for (int i = 1; i <= 40; ++i) {
    forty += std::string({static_cast<char>(i), '\0'});
    absl::StrAppend(&first, i == 1 ? "" : i <= 32 ? " " : "", i <= 32 ? absl::StrCat(i) : "");
  }
  const std::string more = Write("more.bin", forty);
  const auto show = [&](const char* head) {
    return RunCommand(absl::StrCat(data_, " show --format nanogpt-u16 ", head, " ", more)).output;
  };
  EXPECT_THAT(show(""), HasSubstr("\nhead        " + first + "\n")) << "32 by default";
  EXPECT_THAT(show("--head 0"),
              HasSubstr("\ntokens      40\nvocabulary  not stated\nhead        \n"));
  EXPECT_THAT(show("--head 100000"), HasSubstr(" 38 39 40\n"));
  EXPECT_EQ(RunCommand(absl::StrCat(data_, " show ", raw)).code, 64) << "no header";
  EXPECT_THAT(RunCommand(absl::StrCat(data_, " show --head 100001 ", raw)).output,
              HasSubstr("--head"));
}

// Bytes that a terminal would act on are dots.
TEST_F(ToolsTest, ShowPrintsTextThatATerminalCanShow) {
  Write("a.txt", "a ~\x7f\x1f\n");
  const std::string out = folder_.path() + "/out";
  ASSERT_EQ(
      RunCommand(absl::StrCat(data_, " prepare --out ", out, " --ext .txt,none ", folder_.path()))
          .code,
      0);
  // The last tenth of the only file, one byte, validates.
  EXPECT_THAT(RunCommand(absl::StrCat(data_, " show ", out, "/train.bin")).output,
              HasSubstr("\nhead        97 32 126 127 31 0\nas text     a ~..\\0\n"));
  EXPECT_THAT(RunCommand(absl::StrCat(data_, " show ", out, "/val.bin")).output,
              HasSubstr("\nas text     \\n\\0\n"));
}

// The configuration names its model by a file, as those of the example may.
TEST_F(ToolsTest, PlansAModelThatIsNamed) {
  const std::string gpt2 = DTRAIN_SOURCE_DIR "/examples/configs/models/gpt2-124m.json";
  const std::string named =
      Write("named.json", absl::StrCat(R"({"train_batch_size": 8, "data": {"sequence_length": 64},
          "model": {"config": ")",
                                       gpt2, R"("}})"));
  const Result result = RunCommand(absl::StrCat(plan_, " ", named));
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("124.4M parameters in fp32: 16 bytes each"));
  EXPECT_THAT(result.output, HasSubstr("activations"));
  const Result smaller = RunCommand(absl::StrCat(plan_, " ", named, " --set model.n_layer=6"));
  EXPECT_THAT(smaller.output, HasSubstr("81.91M parameters"));
  const Result itself = RunCommand(absl::StrCat(plan_, " ", gpt2, " --gpu-memory 8GB"));
  EXPECT_EQ(itself.code, 0) << itself.output;
  EXPECT_THAT(itself.output,
              HasSubstr("124.4M parameters in bf16 with fp32 masters: 18 bytes each"));
  EXPECT_THAT(itself.output, ::testing::ContainsRegex("stage 0 +1 "));
  const Result changed = RunCommand(absl::StrCat(plan_, " ", gpt2, " --set n_layer=6"));
  EXPECT_EQ(changed.code, 64);
  EXPECT_THAT(changed.output, HasSubstr("which is a model's config.json"));
  const Result gone = RunCommand(absl::StrCat(plan_, " ", named, " --set model.config=/none.json"));
  EXPECT_EQ(gone.code, 64) << gone.output;
  EXPECT_THAT(gone.output, HasSubstr("/none.json"));
}

TEST_F(ToolsTest, RefusesWhatCannotBePlanned) {
  for (const auto& [arguments, named] : std::vector<std::pair<std::string, std::string>>{
           {"", "--params"},
           {"--params 0", "--params"},
           {"--params 8e9 --gpu-memory 80", "80GB"},
           {"--params 8e9 --world-size 0", "--world-size"},
           {"--params eight", "for example 80e9, 80B or 350M"},
           {"--params B", "for example 80e9, 80B or 350M"},
           {"--params nan", "for example 80e9, 80B or 350M"},
           {"--params 8e9 --dtype int8", "int8"},
           {"--params 8e9 --reserve -1", "--reserve"},
           {"--params 8e9 --reserve 10.5", "--reserve"},
           {folder_.path() + "/none.json", "none.json"},
           {Write("no-model.json", R"({"train_batch_size": 8})"), "hidden_size"}}) {
    const Result result = RunCommand(absl::StrCat(plan_, " ", arguments));
    EXPECT_EQ(result.code, 64) << arguments << result.output;
    EXPECT_THAT(result.output, HasSubstr(named));
    EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  }
}

}  // namespace
}  // namespace dtrain::plan::tools_test
