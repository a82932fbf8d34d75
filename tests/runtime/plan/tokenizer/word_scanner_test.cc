// The scanners by hand cut as PCRE2 does by the same patterns.
#include "runtime/plan/tokenizer/word_scanner.h"

#include "absl/strings/str_replace.h"
#include "base/numeric/prng.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/regex.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan::word_scanner_test {
namespace {

std::vector<std::string> ByHand(const WordScanner& scanner, absl::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = scanner.WordEnd(text, begin);
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

std::vector<std::string> ByRegex(const Regex& regex, absl::string_view text) {
  std::vector<std::string> words;
  EXPECT_TRUE(regex
                  .ForEachMatch(text,
                                [&](size_t begin, size_t end) {
                                  words.emplace_back(text.substr(begin, end - begin));
                                })
                  .ok());
  return words;
}

std::string RandomText(SplitMix64& random) {
  static const char* const kParts[] = {
      " ",      "  ",     "\n",     "\r\n",       "\t",     "\u00a0", "\u3000", "'s",
      "'S",     "'ll",    "'RE",    "'\u017f",    "'",      "a",      "The",    "ABc",
      "12",     "3",      "\u00b2", "!",          "//",     "\u4f60", "\u0301", "\u0416",
      "\u0436", "\u01c5", "\u02b0", "\U0001f600", "\u180e", "\u0661", "_",      "\u1c89"};
  std::string text;
  for (uint64_t n = random.Below(14); n > 0; --n) {
    if (random.Below(5) == 0) {
      const auto point = static_cast<uint32_t>(random.Below(0x32000));
      AppendCodePoint(point >= 0xd800 && point < 0xe000 ? 'x' : point, &text);
    } else {
      text += kParts[random.Below(std::size(kParts))];
    }
  }
  return text;
}

class WordScannerTest : public ::testing::TestWithParam<const char*> {};

TEST_P(WordScannerTest, CutsAsTheRegularExpressionDoes) {
  const WordScanner scanner = *WordScanner::ForName(GetParam());
  // A possessive interval is refused in files, where engines differ on it; here it changes nothing.
  // "$" is the end of the text in tiktoken.
  const std::string pattern = absl::StrReplaceAll(WordScanner::PatternOf(GetParam()),
                                                  {{"{1,3}+", "{1,3}"}, {"\\s++$", "\\s++\\z"}});
  const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  ASSERT_TRUE(regex.ok()) << regex.status();
  SplitMix64 random(20261126);
  for (int i = 0; i < 30000; ++i) {
    const std::string text = RandomText(random);
    ASSERT_EQ(ByHand(scanner, text), ByRegex(*regex, text)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, WordScannerTest,
                         ::testing::Values("gpt2", "cl100k", "llama3", "qwen2", "o200k", "tekken"));

TEST(WordScannerTest, KnowsAPatternByItsTextAlone) {
  for (const std::string& name : WordScanner::Names()) {
    // tiktoken's own pattern is not read from files.
    EXPECT_EQ(WordScanner::ForPattern(WordScanner::PatternOf(name)).has_value(), name != "cl100k");
  }
  EXPECT_FALSE(WordScanner::ForPattern(WordScanner::PatternOf("gpt2") + " ").has_value());
  EXPECT_FALSE(WordScanner::ForName("other").has_value());
}

TEST(WordScannerTest, WordsOfKnownTexts) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(ByHand(*WordScanner::ForName("gpt2"), "I've  12345 cats!!"),
            (Words{"I", "'ve", " ", " 12345", " cats", "!!"}));
  EXPECT_EQ(ByHand(*WordScanner::ForName("llama3"), "I'VE  12345\n\n x"),
            (Words{"I", "'VE", " ", " ", "123", "45", "\n\n", " x"}));
  EXPECT_EQ(ByHand(*WordScanner::ForName("qwen2"), "a 12"), (Words{"a", " ", "1", "2"}));
  EXPECT_EQ(ByHand(*WordScanner::ForName("o200k"), "HelloWorld's"), (Words{"Hello", "World's"}));
}

}  // namespace
}  // namespace dtrain::plan::word_scanner_test
