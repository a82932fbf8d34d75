// Hugging Face configurations: what is read, what is written back, what is refused and how.
#include "gpt/gpt_options.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpt/gpt.h"
#include "gpt/model_source.h"

namespace gpt_options_test {
namespace {

using dtrain::Json;
using ::testing::HasSubstr;

Json Parsed(const std::string& text) {
  auto json = dtrain::ParseJson(text, "test");
  EXPECT_TRUE(json.ok()) << json.status();
  return *json;
}

Json SmallLlama() {
  return Parsed(R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64})");
}

Json SmallGpt2() {
  return Parsed(R"({"model_type": "gpt2", "vocab_size": 96, "n_embd": 24, "n_layer": 2,
    "n_head": 4, "n_positions": 64, "n_inner": null})");
}

GptOptions Read(const Json& json) {
  const auto options = GptOptions::FromJson(json, "config.json");
  EXPECT_TRUE(options.ok()) << options.status();
  return options.ok() ? *options : GptOptions();
}

std::string Refused(const Json& json) {
  const auto options = GptOptions::FromJson(json, "config.json");
  EXPECT_FALSE(options.ok()) << json.dump();
  EXPECT_EQ(dtrain::ExitCodeFor(options.status()), dtrain::kExitUsage) << options.status();
  EXPECT_EQ(std::string(options.status().message()).find('\n'), std::string::npos);
  return std::string(options.status().message());
}

TEST(GptOptionsTest, AnObjectWithoutModelTypeIsALlamaWithDefaults) {
  const GptOptions options = Read(Parsed(R"({"hidden_size": 64, "num_attention_heads": 2})"));
  EXPECT_EQ(options.architecture, Architecture::kLlama);
  EXPECT_EQ(options.head_dim, 32);
  EXPECT_EQ(options.num_key_value_heads, 2);
  EXPECT_EQ(options.vocab_size, 256);
}

TEST(GptOptionsTest, BothSpellingsOfRotaryScalingAreRead) {
  Json old = SmallLlama();
  old["rope_theta"] = 500.0;
  old["rope_scaling"] = Parsed(R"({"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32})");
  Json now = SmallLlama();
  now["rope_parameters"] = Parsed(R"({"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32})");
  for (const Json& json : {old, now}) {
    const RopeOptions rope = Read(json).rope;
    EXPECT_EQ(rope.scaling, RopeOptions::Scaling::kLlama3);
    EXPECT_EQ(rope.theta, 500.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.original_max_position_embeddings, 32);
  }
}

TEST(GptOptionsTest, OneRotarySettingWithTwoValuesIsAnErrorThatNamesBoth) {
  const struct {
    const char* text;
    std::vector<const char*> named;
  } cases[] = {
      {R"({"rope_theta": 500, "rope_parameters": {"rope_theta": 10000}})",
       {"config.json.rope_theta is 500 and config.json.rope_parameters.rope_theta is 10000"}},
      {R"({"rope_scaling": {"type": "linear", "factor": 2.0},
           "rope_parameters": {"rope_type": "linear", "factor": 4.0}})",
       {"rope_scaling.factor is 2.0", "rope_parameters.factor is 4.0"}},
      {R"({"rope_scaling": {"type": "linear", "factor": 2.0},
           "rope_parameters": {"rope_type": "default", "rope_theta": 500}})",
       {"rope_scaling.type is \"linear\"", "rope_parameters.rope_type is \"default\""}},
      {R"({"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2.0}})",
       {"rope_scaling.type", "rope_scaling.rope_type"}},
      {R"({"rope_scaling": "linear"})", {"rope_scaling is \"linear\"; allowed: an object"}}};
  for (const auto& c : cases) {
    Json json = SmallLlama();
    json.update(Parsed(c.text));
    const std::string message = Refused(json);
    for (const char* const part : c.named) {
      EXPECT_THAT(message, HasSubstr(part));
    }
  }
  // Two spellings that agree, as exports have them, are one.
  Json both = SmallLlama();
  both.update(Parsed(R"({"rope_theta": 500, "rope_scaling": {"type": "linear", "factor": 2},
      "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}})"));
  EXPECT_EQ(Read(both).rope.theta, 500);
  EXPECT_EQ(Read(both).rope.factor, 2);
}

// The file of a folder, as transformers 4 and 5 and exports of dtrain write it, and what --set
// makes of it: written by hand, beside the four numbers that the model then has.
TEST(GptOptionsTest, OverridesWinInEverySpelling) {
  const std::string scaled = R"("factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
                                "original_max_position_embeddings": 16)";
  const std::string old =
      absl::StrCat(R"({"rope_theta": 100.0, "rope_scaling": {"type": "llama3", )", scaled, "}}");
  const std::string now = absl::StrCat(
      R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, )", scaled, "}}");
  Json export_of_dtrain = SmallLlama();
  export_of_dtrain.update(Parsed(now));
  export_of_dtrain = Read(export_of_dtrain).ToHuggingFace({});
  using Scaling = RopeOptions::Scaling;
  const struct {
    std::vector<std::string> sets;
    double theta;
    Scaling scaling;
    double factor;
    int64_t original;
  } cases[] = {
      {{}, 100, Scaling::kLlama3, 4, 16},
      {{"model.rope_theta=500"}, 500, Scaling::kLlama3, 4, 16},
      {{"model.rope_parameters.rope_theta=500"}, 500, Scaling::kLlama3, 4, 16},
      {{R"(model.rope_parameters={"rope_theta":500})"}, 500, Scaling::kLlama3, 4, 16},
      {{"model.rope_scaling.factor=8"}, 100, Scaling::kLlama3, 8, 16},
      {{"model.rope_parameters.factor=8"}, 100, Scaling::kLlama3, 8, 16},
      {{"model.rope_scaling.original_max_position_embeddings=32"}, 100, Scaling::kLlama3, 4, 32},
      {{R"(model.rope_scaling={"type":"linear","factor":2})"}, 100, Scaling::kLinear, 2, 0},
      {{R"(model.rope_scaling={"rope_type":"linear","factor":2})"}, 100, Scaling::kLinear, 2, 0},
      {{R"(model.rope_parameters={"rope_type":"linear","factor":2,"rope_theta":7})"},
       7,
       Scaling::kLinear,
       2,
       0},
      {{"model.rope_theta=9", "model.rope_scaling.type=linear", "model.rope_scaling.factor=3"},
       9,
       Scaling::kLinear,
       3,
       0},
      {{"model.rope_scaling=null"}, 100, Scaling::kNone, 1, 0},
      {{"model.rope_parameters=null", "model.rope_theta=3"}, 3, Scaling::kNone, 1, 0},
      {{R"(model.rope_parameters={"rope_type":"default"})"}, 100, Scaling::kNone, 1, 0},
      {{"model.rope_scaling.rope_type=llama3"}, 100, Scaling::kLlama3, 4, 16},
      // A later --set takes the place of an earlier one in another spelling.
      {{"model.rope_parameters.rope_theta=500", "model.rope_theta=600"},
       600,
       Scaling::kLlama3,
       4,
       16},
      {{"model.rope_theta=600", "model.rope_parameters.rope_theta=500"},
       500,
       Scaling::kLlama3,
       4,
       16},
      {{"model.rope_scaling.factor=8", "model.rope_parameters.factor=9"},
       100,
       Scaling::kLlama3,
       9,
       16},
      {{R"(model.rope_parameters={"rope_type":"linear","factor":9})",
        R"(model.rope_scaling={"type":"linear","factor":5})"},
       100,
       Scaling::kLinear,
       5,
       0},
  };
  const std::string folder = ::testing::TempDir() + "/rope_overrides";
  std::filesystem::create_directories(folder);
  for (const Json& changes : {Parsed(old), Parsed(now), export_of_dtrain}) {
    Json file = SmallLlama();
    file.update(changes);
    std::ofstream(folder + "/config.json") << file.dump();
    for (const auto& c : cases) {
      std::vector<std::string> sets = {"model.config=" + folder + "/config.json"};
      sets.insert(sets.end(), c.sets.begin(), c.sets.end());
      const auto config = dtrain::Config::Parse(
          R"({"train_batch_size": 1, "data": {"sequence_length": 8}})", "run.json", sets, 1);
      ASSERT_TRUE(config.ok()) << config.status();
      const auto source = ReadModelSource(*config);
      ASSERT_TRUE(source.ok()) << source.status() << " " << sets.back();
      const RopeOptions& rope = source->options.rope;
      EXPECT_EQ(rope.theta, c.theta) << sets.back() << " on " << file.dump();
      EXPECT_EQ(rope.scaling, c.scaling) << sets.back() << " on " << file.dump();
      EXPECT_EQ(rope.factor, c.factor) << sets.back() << " on " << file.dump();
      EXPECT_EQ(rope.original_max_position_embeddings, c.original) << sets.back();
    }
  }
}

// The "model" object of a run's own file counts as the folder's file does.
TEST(GptOptionsTest, OverridesWinOverTheRunsOwnFile) {
  const std::string text = R"({"train_batch_size": 1, "data": {"sequence_length": 8}, "model": {
      "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 100}}})";
  const std::pair<std::vector<std::string>, std::pair<double, double>> cases[] = {
      {{"model.rope_theta=500"}, {500, 2}},
      {{"model.rope_scaling.factor=4"}, {100, 4}},
      {{R"(model.rope_scaling={"type":"linear","factor":4})"}, {100, 4}},
      {{R"(model.rope_scaling={"type":"default"})"}, {100, 1}}};
  for (const auto& [sets, wanted] : cases) {
    const auto config = dtrain::Config::Parse(text, "run.json", sets, 1);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto source = ReadModelSource(*config);
    ASSERT_TRUE(source.ok()) << source.status() << " " << sets.back();
    EXPECT_EQ(source->options.rope.theta, wanted.first) << sets.back();
    EXPECT_EQ(source->options.rope.factor, wanted.second) << sets.back();
  }
}

TEST(GptOptionsTest, WhatIsWrittenReadsBackTheSame) {
  Json qwen3 = SmallLlama();
  qwen3["model_type"] = "qwen3";
  qwen3["architectures"] = {"Qwen3ForCausalLM"};
  qwen3["head_dim"] = 10;
  qwen3["tie_word_embeddings"] = true;
  Json qwen2 = SmallLlama();
  qwen2["model_type"] = "qwen2";
  qwen2["architectures"] = {"Qwen2ForCausalLM"};
  Json biased = SmallLlama();
  biased["attention_bias"] = true;
  biased["mlp_bias"] = true;
  biased["bos_token_id"] = 7;
  for (const Json& json : {SmallLlama(), biased, qwen2, qwen3, SmallGpt2()}) {
    const Json written = Read(json).ToHuggingFace({});
    EXPECT_EQ(Read(written).ToHuggingFace({}), written) << written.dump();
    EXPECT_EQ(written.at("bos_token_id"), json.value("bos_token_id", Json()));
  }
}

// Follows transformers 5: what a config.json ties is tied if the files agree, and two different
// tensors stay two, with one warning.
TEST(GptOptionsTest, AFolderThatSaysTiedAndHoldsAHeadOfItsOwnKeepsTheHead) {
  const std::string folder = ::testing::TempDir() + "/tied";
  const auto write = [&](Json config, const std::string& embedding, bool equal) {
    config["tie_word_embeddings"] = true;
    const at::Tensor values = at::arange(96 * 24, at::kFloat).view({96, 24});
    const std::vector<at::Tensor> tensors = {values, equal ? values : values + 1};
    dtrain::ModelFolderContent content;
    content.files = {{"config.json", config.dump()}};
    content.tensors = {{embedding, at::kFloat, {96, 24}}, {"lm_head.weight", at::kFloat, {96, 24}}};
    return dtrain::WriteModelFolder(folder, content, [&](size_t i) { return tensors[i]; });
  };
  const auto read = [&](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"model.pretrained=" + folder, "data.sequence_length=8"};
    sets.insert(sets.end(), more.begin(), more.end());
    const auto config = dtrain::Config::Parse(R"({"train_batch_size": 1})", "run.json", sets, 1);
    EXPECT_TRUE(config.ok()) << config.status();
    auto source = ReadModelSource(*config);
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  };
  const std::pair<Json, std::string> models[] = {{SmallLlama(), "model.embed_tokens.weight"},
                                                 {SmallLlama(), "embed_tokens.weight"},
                                                 {SmallGpt2(), "transformer.wte.weight"},
                                                 {SmallGpt2(), "wte.weight"}};
  for (const auto& [config, embedding] : models) {
    ASSERT_TRUE(write(config, embedding, /*equal=*/true).ok());
    const ModelSource same = read({});
    EXPECT_TRUE(same.options.tie_word_embeddings) << embedding;
    EXPECT_EQ(same.warning, "");

    ASSERT_TRUE(write(config, embedding, /*equal=*/false).ok());
    const ModelSource two = read({});
    EXPECT_FALSE(two.options.tie_word_embeddings) << embedding;
    EXPECT_THAT(two.warning, HasSubstr(embedding));
    EXPECT_THAT(two.warning, HasSubstr("lm_head.weight"));
    EXPECT_EQ(two.options.ToHuggingFace({}).at("tie_word_embeddings"), false);
    // A value that the run sets itself holds.
    const ModelSource tied = read({"model.tie_word_embeddings=true"});
    EXPECT_TRUE(tied.options.tie_word_embeddings);
    EXPECT_THAT(tied.warning, HasSubstr("is not read"));
    const ModelSource untied = read({"model.tie_word_embeddings=false"});
    EXPECT_FALSE(untied.options.tie_word_embeddings);
    EXPECT_EQ(untied.warning, "");
  }
}

// A row has what a run sets, beside a file or alone, and what it then says; "": the run takes it.
TEST(GptOptionsTest, ASettingOfTheRunHasAnEffectOrIsRefusedByName) {
  Json gpt2 = SmallGpt2();
  gpt2["n_ctx"] = 64;
  gpt2["torch_dtype"] = "bfloat16";  // The type of the weights in the file.
  Json llama = SmallLlama();
  llama["dtype"] = "bfloat16";
  Json qwen2 = SmallLlama();
  qwen2["model_type"] = "qwen2";
  qwen2["architectures"] = {"Qwen2ForCausalLM"};
  qwen2["use_sliding_window"] = false;
  qwen2["sliding_window"] = 32;
  const struct {
    const Json& file;
    std::vector<std::string> sets;
    std::vector<const char*> named;
  } cases[] = {
      {gpt2, {}, {}},
      {gpt2, {"model.n_ctx=32"}, {"n_ctx is 32 and n_positions is 64"}},
      {gpt2, {"model.n_positions=32"}, {}},
      {gpt2, {"model.n_positions=32", "model.n_ctx=32"}, {}},
      {gpt2, {"model.n_positions=32", "model.n_ctx=64"}, {"n_ctx is 64 and n_positions is 32"}},
      {gpt2, {"model.torch_dtype=float16"}, {"model.torch_dtype", "computes in float32", "fp16"}},
      {gpt2, {"model.torch_dtype=float32"}, {}},
      {gpt2, {"model.dtype=bfloat16"}, {"model.dtype", "computes in float32"}},
      {gpt2, {"model.dtype=torch.bfloat16", "bf16.enabled=true"}, {}},
      {gpt2, {"model.max_position_embeddings=32"}, {"max_position_embeddings"}},
      {gpt2, {"model.hidden_act=gelu"}, {"hidden_act"}},
      {gpt2, {"model.head_dim=8"}, {"head_dim"}},
      {gpt2, {"model.attention_bias=false"}, {"attention_bias"}},
      {gpt2, {"model.mlp_bias=false"}, {"mlp_bias"}},
      {gpt2, {"model.rms_norm_eps=1e-3"}, {"rms_norm_eps"}},
      {gpt2, {"model.sliding_window=32"}, {"sliding_window"}},
      {gpt2, {"model.gradient_checkpointing=true"}, {"activation_checkpointing.mode"}},
      {gpt2, {"model.gradient_checkpointing=false"}, {}},
      {llama, {}, {}},
      {llama, {"model.n_ctx=32"}, {"n_ctx"}},
      {llama, {"model.n_positions=32"}, {"n_positions"}},
      {llama, {"model.activation_function=gelu"}, {"activation_function"}},
      {llama, {"model.layer_norm_epsilon=1e-3"}, {"layer_norm_epsilon"}},
      {llama, {"model.sliding_window=32"}, {"sliding_window"}},
      {llama, {"model.attn_implementation=eager"}, {"attn_implementation", "attention_backend"}},
      {llama, {"model._attn_implementation=eager"}, {"attention_backend"}},
      {qwen2, {}, {}},
      {qwen2, {"model.sliding_window=16"}, {"model.sliding_window", "use_sliding_window"}},
      {qwen2, {"model.max_window_layers=1"}, {"model.max_window_layers", "no effect"}},
      {qwen2, {"model.use_sliding_window=true"}, {"use_sliding_window"}},
      {qwen2, {"model.attention_bias=false"}, {"attention_bias"}},
  };
  const std::string folder = ::testing::TempDir() + "/effects";
  std::filesystem::create_directories(folder);
  for (const auto& c : cases) {
    std::ofstream(folder + "/config.json") << c.file.dump();
    std::vector<std::string> sets = {"model.config=" + folder + "/config.json"};
    sets.insert(sets.end(), c.sets.begin(), c.sets.end());
    SCOPED_TRACE(absl::StrCat(c.file.at("model_type").dump(), " ", sets.back()));
    const auto config = dtrain::Config::Parse(
        R"({"train_batch_size": 1, "data": {"sequence_length": 8}})", "run.json", sets, 1);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto source = ReadModelSource(*config);
    EXPECT_EQ(source.ok(), c.named.empty()) << source.status();
    for (const char* const part : c.named) {
      EXPECT_EQ(dtrain::ExitCodeFor(source.status()), dtrain::kExitUsage);
      EXPECT_THAT(std::string(source.status().message()), HasSubstr(part));
    }
  }
}

TEST(GptOptionsTest, WhatIsNotSupportedIsRefusedByName) {
  const struct {
    const char* key;
    const char* value;
    std::vector<const char*> named;
  } cases[] = {
      {"model_type", R"("mistral")", {"model_type", "mistral", "allowed", "llama"}},
      {"architectures",
       R"(["LlamaForSequenceClassification"])",
       {"architectures", "LlamaForSequenceClassification"}},
      {"rope_scaling", R"({"rope_type": "yarn", "factor": 4.0})", {"rope_scaling", "yarn"}},
      {"rope_parameters", R"({"rope_type": "dynamic", "factor": 4.0})", {"dynamic", "linear"}},
      {"rope_parameters", R"({"rope_type": "linear"})", {"lacks", "factor"}},
      {"partial_rotary_factor", "0.5", {"partial_rotary_factor", "0.5"}},
      {"hidden_act", R"("relu")", {"hidden_act", "relu", "silu"}},
      {"quantization_config", R"({"quant_method": "fp8"})", {"quantization_config"}},
      {"sliding_window", "4096", {"unknown key", "sliding_window"}},
      {"num_local_experts", "8", {"num_local_experts"}},
      {"num_key_value_heads", "3", {"num_attention_heads 4", "3; nearest: 3 or 6"}},
      {"num_key_value_heads", "9", {"not a multiple of num_key_value_heads 9; nearest: 9"}},
      {"num_attention_heads", "5", {"hidden_size 24", "nearest: 20 or 25, or give head_dim"}},
      {"num_key_value_heads", "-1", {"num_key_value_heads", "-1", "allowed"}},
      {"head_dim", "5", {"head size 5", "even"}},
      {"vocab_size", "null", {"lacks", "vocab_size"}},
      {"hidden_size", R"("big")", {"hidden_size", "integer"}},
      {"rms_norm_eps", "0", {"rms_norm_eps"}},
      {"attention_dropout", "1.0", {"attention_dropout"}},
      {"tie_word_embeddings", "1", {"tie_word_embeddings", "true or false"}},
      {"attention_backend", R"("xformers")", {"attention_backend", "flash"}},
  };
  for (const auto& c : cases) {
    Json json = SmallLlama();
    json[c.key] = Parsed(c.value);
    const std::string message = Refused(json);
    EXPECT_THAT(message, HasSubstr("config.json"));
    for (const char* part : c.named) {
      EXPECT_THAT(message, HasSubstr(part));
    }
  }
  Json gpt2 = SmallGpt2();
  gpt2["scale_attn_by_inverse_layer_idx"] = true;
  EXPECT_THAT(Refused(gpt2), HasSubstr("scale_attn_by_inverse_layer_idx"));
  gpt2 = SmallGpt2();
  gpt2["n_head"] = 5;
  EXPECT_THAT(Refused(gpt2), HasSubstr("not a multiple of n_head 5; nearest: 20 or 25"));
  Json qwen2 = SmallLlama();
  qwen2["model_type"] = "qwen2";
  qwen2["architectures"] = nullptr;
  qwen2["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_THAT(Refused(qwen2), HasSubstr("sliding_attention"));
  EXPECT_THAT(Refused(Json::array()), HasSubstr("object"));
}

// performance.md's figures of the published models; Llama's are Meta's.
TEST(GptOptionsTest, PresetsHaveTheParametersOfThePublishedModels) {
  const std::pair<const char*, double> models[] = {
      {"gpt2-124m", 124439808.0},   {"gpt2-medium", 354823168.0},  {"gpt2-large", 774030080.0},
      {"gpt2-xl", 1557611200.0},    {"llama-1b", 1235814400.0},    {"llama-3b", 3212749824.0},
      {"llama-8b", 8030261248.0},   {"qwen2.5-0.5b", 494032768.0}, {"qwen2.5-1.5b", 1543714304.0},
      {"qwen2.5-3b", 3085938688.0}, {"qwen2.5-7b", 7615616512.0},  {"qwen3-0.6b", 596049920.0}};
  for (const auto& [name, parameters] : models) {
    const std::string path =
        std::string(DTRAIN_SOURCE_DIR) + "/examples/configs/models/" + name + ".json";
    const auto json = dtrain::ReadModelConfig(path);
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ(Read(*json).flop_model().parameters, parameters) << name;
  }
}

TEST(GptOptionsTest, CountedParametersAreTheModels) {
  Json qwen3 = SmallLlama();
  qwen3["model_type"] = "qwen3";
  qwen3["architectures"] = nullptr;
  qwen3["head_dim"] = 10;
  qwen3["attention_bias"] = true;
  Json qwen2 = SmallLlama();
  qwen2["model_type"] = "qwen2";
  qwen2["architectures"] = nullptr;
  qwen2["tie_word_embeddings"] = true;
  Json biased = SmallLlama();
  biased["attention_bias"] = true;
  biased["mlp_bias"] = true;
  for (const Json& json : {SmallLlama(), biased, qwen2, qwen3, SmallGpt2()}) {
    const GptOptions options = Read(json);
    int64_t parameters = 0;
    for (const at::Tensor& parameter : Gpt(options)->parameters()) {
      parameters += parameter.numel();
    }
    EXPECT_EQ(options.flop_model().parameters, static_cast<double>(parameters)) << json.dump();
  }
}

}  // namespace
}  // namespace gpt_options_test
