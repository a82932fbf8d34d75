// Generation from a cache gives what the whole model gives without one, token by token.
#include "generate/generate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "generate/sample.h"
#include "tests/examples/small_gpt.h"

namespace generate_test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 17;

Gpt Model(Architecture architecture, const SmallGptSizes& sizes = {}) {
  at::manual_seed(kSeed);
  GptOptions options = SmallGpt(architecture, sizes);
  options.initializer_range = 0.3;  // Attention that looks about.
  return Gpt(options);
}

at::Tensor Row(const std::vector<uint32_t>& ids) {
  std::vector<int64_t> tokens(ids.begin(), ids.end());
  return at::tensor(tokens, at::kLong).unsqueeze(0);
}

absl::StatusOr<Generated> Written(Gpt& model, const std::vector<uint32_t>& prompt,
                                  const GenerateOptions& options) {
  return Generate(*model, prompt, options, [](uint32_t) {});
}

class EachArchitecture : public ::testing::TestWithParam<Architecture> {};

TEST_P(EachArchitecture, HasTheLogitsOfAWholePassBehindACache) {
  Gpt model = Model(GetParam());
  model->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::randint(0, 61, {1, 32}, at::kLong);
  const at::Tensor whole = model->forward(tokens);
  KeyValueCache cache(2, 32);
  for (int64_t end = 5; end <= 32; ++end) {
    const int64_t begin = end == 5 ? 0 : end - 1;
    const at::Tensor next = model->Next(tokens.narrow(1, begin, end - begin), cache);
    // fp32 sums in another order; logits are of the order of 1.
    EXPECT_TRUE(at::allclose(next, whole.select(1, end - 1), 1e-4, 1e-5)) << end;
    EXPECT_EQ(cache.length(), end);
  }
}

TEST_P(EachArchitecture, WritesTheMostLikelyTokensUpToTheLastPosition) {
  Gpt model = Model(GetParam());
  std::vector<uint32_t> ids = {3, 1, 4};
  const auto done = Written(model, ids, {.tokens_max = 100});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->end, Generated::End::kContext);
  EXPECT_EQ(done->tokens.size(), 30U) << "one behind each of the positions 2 to 31";
  model->eval();
  const at::NoGradGuard no_grad;
  for (const uint32_t token : done->tokens) {
    const at::Tensor logits = model->forward(Row(ids)).select(1, -1);
    EXPECT_EQ(logits.argmax().item<int64_t>(), token) << ids.size();
    ids.push_back(token);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpt, EachArchitecture,
                         ::testing::Values(Architecture::kGpt2, Architecture::kLlama,
                                           Architecture::kQwen2, Architecture::kQwen3));

TEST(Generate, EndsAtAStopTokenWhichItDoesNotGive) {
  Gpt model = Model(Architecture::kLlama);
  const auto free_run = Written(model, {7}, {.tokens_max = 8});
  ASSERT_TRUE(free_run.ok());
  const uint32_t stop = free_run->tokens[4];
  size_t first = 0;
  while (free_run->tokens[first] != stop) {
    ++first;
  }
  std::vector<uint32_t> given;
  const auto done =
      Generate(*model, std::vector<uint32_t>{7}, {.tokens_max = 8, .stops = {60, stop}},
               [&given](uint32_t token) { given.push_back(token); });
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(done->end, Generated::End::kStop);
  EXPECT_EQ(done->tokens.size(), first + 1);
  EXPECT_THAT(given, ElementsAreArray(done->tokens.begin(), done->tokens.end() - 1));
}

TEST(Generate, DrawsTheSameBySeedAndOtherwiseAnother) {
  Gpt model = Model(Architecture::kQwen3);
  GenerateOptions options{.sampling = {.temperature = 1}, .seed = 5, .tokens_max = 20};
  const auto first = Written(model, {7, 8}, options);
  const auto again = Written(model, {7, 8}, options);
  options.seed = 6;
  const auto other = Written(model, {7, 8}, options);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(first->tokens, again->tokens);
  EXPECT_NE(first->tokens, other->tokens);
}

TEST(Generate, LeavesTheModelInTheModeInWhichItWas) {
  Gpt model = Model(Architecture::kLlama);
  model->train();
  ASSERT_TRUE(Written(model, {1}, {.tokens_max = 1}).ok());
  EXPECT_TRUE(model->is_training());
}

TEST(Generate, RefusesPromptsThatTheModelCannotRead) {
  Gpt model = Model(Architecture::kLlama);
  const auto message = [&](const std::vector<uint32_t>& prompt) {
    return std::string(Written(model, prompt, {}).status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("the prompt has no token"));
  EXPECT_THAT(message({1, 61}), HasSubstr("has the token 61, but the model has 61 tokens"));
  EXPECT_THAT(message(std::vector<uint32_t>(32, 1)), HasSubstr("32 tokens, and the model has 32"));
}

TEST(Generate, NamesLogitsThatAreNotFinite) {
  Gpt model = Model(Architecture::kLlama);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor parameter : model->parameters()) {
      parameter.fill_(NAN);
    }
  }
  EXPECT_THAT(std::string(Written(model, {1}, {}).status().message()), HasSubstr("are not finite"));
}

TEST(SampleText, ShowsBytesAsPrintableText) {
  Gpt model = Model(Architecture::kLlama, {.vocabulary = 256});
  const auto text = SampleText(*model, {.prompt = "int a;", .tokens = 20});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 26U);
  EXPECT_EQ(text->substr(0, 6), "int a;");
  for (const char c : *text) {
    EXPECT_TRUE(c == '\n' || c == '\t' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  }
}

TEST(SampleText, IsNotShownWhereTokensHaveNoTextOrNoneIsWanted) {
  const Gpt words = Model(Architecture::kLlama);
  const Gpt bytes = Model(Architecture::kLlama, {.vocabulary = 256});
  EXPECT_FALSE(ShowsText(words->options(), {.tokens = 5}));
  EXPECT_TRUE(ShowsText(words->options(), {.tokens = 5, .tokenizer = "folder"}));
  EXPECT_TRUE(ShowsText(bytes->options(), {.tokens = 5}));
  EXPECT_FALSE(ShowsText(bytes->options(), {.tokens = 0}));
}

TEST(SampleOptions, AreReadFromTheRunsSection) {
  const auto options =
      SampleOptions::FromJson({{"prompt", "a"}, {"bytes", 7}, {"temperature", 0.5}, {"top_k", 3}});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->prompt, "a");
  EXPECT_EQ(options->tokens, 7);
  EXPECT_EQ(options->temperature, 0.5);
  EXPECT_EQ(options->top_k, 3);
  EXPECT_EQ(SampleOptions::FromJson({{"bytes", 0}})->tokens, 0);
  EXPECT_THAT(std::string(SampleOptions::FromJson({{"promt", "a"}}).status().message()),
              HasSubstr("unknown key sample.promt"));
  EXPECT_THAT(std::string(SampleOptions::FromJson({{"prompt", 1}}).status().message()),
              HasSubstr("sample.prompt is 1; allowed: a text"));
}

}  // namespace
}  // namespace generate_test
