#include "runtime/plan/tokenizer/regex.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::regex_test {
namespace {

using ::testing::HasSubstr;

TEST(RegexTest, WhatPcre2ReadsDifferentlyIsTranslated) {
  EXPECT_EQ(*TranslateRegex(R"(\s\S[^\s\b]\u00e9\r)"),
            R"(\p{White_Space}\P{White_Space}[^\p{White_Space}\b]\x{00e9}\r)");
  EXPECT_EQ(*TranslateRegex("^a$"), "(?m:^)a(?m:$)");
  EXPECT_EQ(*TranslateRegex("[]^$(?i:]"), "[]^$(?i:]");
  // Intervals that all engines read alike, and what is none.
  EXPECT_EQ(*TranslateRegex("a{2,3}?b{2,}?[{,2}]{x,{,}{,x}"), "a{2,3}?b{2,}?[{,2}]{x,{,}{,x}");
  // U+1C89 is a letter since Unicode 16.
  EXPECT_THAT(*TranslateRegex(R"([^\p{L}])"), HasSubstr("\\x{1c89}"));
}

TEST(RegexTest, WhatMeansSomethingElseIsRefusedByName) {
  for (const auto& [pattern, what] :
       {std::pair("[a&&b]", "&&"), std::pair("[a[b]]", "class within a class"),
        std::pair("\\p{Emoji}", "property \"Emoji\""), std::pair("[\\P{Han}]", "property \"Han\""),
        std::pair("a{1,3}+", "possessive interval"),
        std::pair("xa{,2}b", "without its least number"), std::pair("xa{2}?b", "optional interval"),
        std::pair("\\h", "\\h"), std::pair("(?<name>a)", "(?<n"), std::pair("a*", "empty text"),
        std::pair("a\\", "backslash")}) {
    const absl::Status status = Regex::Compile(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << pattern;
    EXPECT_THAT(status.message(), HasSubstr(what));
  }
  EXPECT_THAT(Regex::Compile("(a").status().message(), HasSubstr("is wrong"));
  EXPECT_EQ(Regex::Compile(std::string(70000, 'a')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

std::string Matches(const std::string& pattern, const std::string& text) {
  const absl::StatusOr<Regex> regex = Regex::Compile(pattern);
  if (!regex.ok()) {
    return regex.status().ToString();
  }
  std::string found;
  const absl::Status status = regex->ForEachMatch(
      text, [&](size_t begin, size_t end) { found += text.substr(begin, end - begin) + "|"; });
  return status.ok() ? found : status.ToString();
}

// The values are those of Oniguruma, as tests/interop/tokenizer_test.py compares for all
// characters.
TEST(RegexTest, ClassesHaveTheMembersOfUnicode16) {
  const std::string digit = "\U000116E1";  // Of Unicode 16.
  const std::string text = "a\u0301" + digit + "-\u00b2 \u24b6.";
  EXPECT_EQ(Matches("\\w+", text), "a\u0301" + digit + "|\u00b2|\u24b6|");
  EXPECT_EQ(Matches("[\\w]+", text), "a\u0301" + digit + "|\u24b6|");
  EXPECT_EQ(Matches("\\W+", text), "-| |.|");
  EXPECT_EQ(Matches("[\\W]+", text), "-\u00b2 |.|");
  EXPECT_EQ(Matches("\\d", text), digit + "|");
  EXPECT_EQ(Matches("[\\D]+", text), "a\u0301|-\u00b2 \u24b6.|");
  EXPECT_EQ(Matches("[\\P{Nd}]+", text), "a\u0301|-\u00b2 \u24b6.|");
  // U+0378 is unassigned.
  EXPECT_EQ(Matches("\\p{Cn}", digit + "\u0378"), "\u0378|");
  EXPECT_EQ(Matches("[\\p{C}]", digit + "\u0378\n"), "\u0378|\n|");
  EXPECT_EQ(Matches("[\\P{Cn}]+", digit + "\u0378\n"), digit + "|\n|");
  EXPECT_EQ(Matches("\\b.", digit + "-a"), digit + "|-|a|");
  EXPECT_EQ(Matches("\\B.", digit + "ab-"), "a|b|");
  // U+3001 is a comma that scripts share, U+31350 is of Unicode 15.
  EXPECT_EQ(Matches("\\p{Han}+", "\u4e00\u3001\U00031350"), "\u4e00|\U00031350|");
}

TEST(RegexTest, WorkIsBounded) {
  const absl::StatusOr<Regex> regex = Regex::Compile("(?:a|aa|aaa)+[bc]");
  ASSERT_TRUE(regex.ok()) << regex.status();
  const absl::Status status =
      regex->ForEachMatch(std::string(60, 'a'), [](size_t, size_t) { FAIL() << "no b"; });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("needs too much work at byte 0 of a text of 60 bytes"));
}

TEST(RegexTest, EscapedTextMatchesItselfAlone) {
  const std::string text = "a.b*[c]\\(\u2581)";
  const absl::StatusOr<Regex> regex = Regex::Compile(EscapeRegex(text));
  ASSERT_TRUE(regex.ok()) << regex.status();
  size_t matches = 0;
  ASSERT_TRUE(regex
                  ->ForEachMatch(text + "axb" + text,
                                 [&](size_t begin, size_t end) {
                                   ++matches;
                                   EXPECT_EQ(end - begin, text.size());
                                 })
                  .ok());
  EXPECT_EQ(matches, 2u);
}

}  // namespace
}  // namespace dtrain::plan::regex_test
