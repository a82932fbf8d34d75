// Which token is chosen: the candidates are those of transformers' rules, and each is drawn as
// often as its probability says.
#include "generate/choose_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace choose_token_test {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

// Probabilities 0.4, 0.1, 0.3, 0.2 at the temperature 1.
const std::vector<float>& Logits() {
  static const auto* const logits =
      new std::vector<float>{std::log(0.4F), std::log(0.1F), std::log(0.3F), std::log(0.2F)};
  return *logits;
}

// How often, of `draws` evenly spread ones, each token is chosen.
std::vector<int> Counts(const SamplingOptions& options, int draws) {
  std::vector<int> counts(Logits().size());
  for (int i = 0; i < draws; ++i) {
    ++counts[ChooseToken(Logits(), options, (i + 0.5) / draws)];
  }
  return counts;
}

TEST(ChooseToken, WithoutATemperatureItIsTheFirstOfTheLargest) {
  EXPECT_EQ(ChooseToken(Logits(), {}, 0.99), 0U);
  EXPECT_EQ(ChooseToken(std::vector<float>{1, 3, 3, 2}, {.top_k = 3, .top_p = 0.5}, 0.99), 1U);
}

TEST(ChooseToken, DrawsByProbability) {
  EXPECT_THAT(Counts({.temperature = 1}, 1000), ElementsAre(400, 100, 300, 200));
}

TEST(ChooseToken, ATemperatureOfAHalfSquaresProbabilities) {
  // 0.16, 0.01, 0.09, 0.04 of 0.30.
  EXPECT_THAT(Counts({.temperature = 0.5}, 3000), ElementsAre(1600, 100, 900, 400));
}

TEST(ChooseToken, TopKLeavesTheMostLikely) {
  EXPECT_THAT(Counts({.temperature = 1, .top_k = 2}, 700), ElementsAre(400, 0, 300, 0));
  EXPECT_THAT(Counts({.temperature = 1, .top_k = 9}, 1000), ElementsAre(400, 100, 300, 200));
}

TEST(ChooseToken, TopPLeavesTheFewestThatHaveTheShareTogether) {
  EXPECT_THAT(Counts({.temperature = 1, .top_p = 0.69}, 700), ElementsAre(400, 0, 300, 0));
  EXPECT_THAT(Counts({.temperature = 1, .top_p = 0.71}, 900), ElementsAre(400, 0, 300, 200));
  EXPECT_THAT(Counts({.temperature = 1, .top_p = 1e-9}, 100), ElementsAre(100, 0, 0, 0));
}

TEST(ChooseToken, TopPIsAShareOfWhatTopKLeft) {
  // 0.4 and 0.3 of 0.7: the first alone has 0.57.
  EXPECT_THAT(Counts({.temperature = 1, .top_k = 2, .top_p = 0.5}, 100), ElementsAre(100, 0, 0, 0));
}

TEST(ChooseToken, TheLastOfManyCanBeDrawn) {
  const std::vector<float> flat(1000, 0.0F);
  std::set<uint32_t> drawn;
  for (int i = 0; i < 1000; ++i) {
    drawn.insert(ChooseToken(flat, {.temperature = 1}, (i + 0.5) / 1000));
  }
  EXPECT_EQ(drawn.size(), 1000U);
  EXPECT_EQ(ChooseToken(flat, {.temperature = 1}, std::nextafter(1.0, 0.0)), 999U);
}

TEST(PenaliseRepetition, DividesLogitsAboveZeroAndMultipliesOthersOnce) {
  std::vector<float> logits = {2, -2, 3, -3};
  PenaliseRepetition(std::vector<uint32_t>{0, 1, 0}, 2, absl::MakeSpan(logits));
  EXPECT_THAT(logits, ElementsAre(FloatEq(1), FloatEq(-4), FloatEq(3), FloatEq(-3)));
}

TEST(CheckSampling, NamesWhatIsOutOfRange) {
  EXPECT_TRUE(CheckSampling({.temperature = 0.7, .top_k = 40, .top_p = 0.9}).ok());
  const auto message = [](const SamplingOptions& options) {
    return std::string(CheckSampling(options).message());
  };
  EXPECT_THAT(message({.temperature = -1}), HasSubstr("--temperature is -1"));
  EXPECT_THAT(message({.temperature = NAN}), HasSubstr("--temperature is nan"));
  EXPECT_THAT(message({.top_k = -1}), HasSubstr("--top-k is -1"));
  EXPECT_THAT(message({.top_p = 0}), HasSubstr("--top-p is 0; it must be above 0"));
  EXPECT_THAT(message({.temperature = HUGE_VAL}), HasSubstr("--temperature is inf"));
  EXPECT_THAT(message({.top_p = NAN}), HasSubstr("--top-p is nan"));
  EXPECT_THAT(message({.top_p = 1.5}),
              HasSubstr("--top-p is 1.5; it must be above 0 and at most 1"));
  for (const double penalty : {0.0, -1.0, 1e-30, 1e30, double{NAN}, HUGE_VAL}) {
    EXPECT_THAT(message({.repetition_penalty = penalty}),
                ::testing::AllOf(HasSubstr("--repetition-penalty is "),
                                 HasSubstr("it must be from 0.01 to 100 (1: none)")))
        << penalty;
  }
  EXPECT_TRUE(CheckSampling({.repetition_penalty = 0.01}).ok());
  EXPECT_TRUE(CheckSampling({.repetition_penalty = 100}).ok());
}

}  // namespace
}  // namespace choose_token_test
