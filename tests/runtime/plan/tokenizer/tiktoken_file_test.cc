#include "runtime/plan/tokenizer/tiktoken_file.h"

#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/tiktoken_published.h"

namespace dtrain::plan::tiktoken_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The bytes by their values, then `tokens`.
std::string File(const std::vector<std::string>& tokens) {
  std::string text;
  for (int rank = 0; rank < 256; ++rank) {
    absl::StrAppend(&text, absl::Base64Escape(std::string(1, static_cast<char>(rank))), " ", rank,
                    "\n");
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    absl::StrAppend(&text, absl::Base64Escape(tokens[i]), " ", 256 + i, "\n");
  }
  return text;
}

TEST(TiktokenFileTest, RanksAreMergedAndWholeWordsAreTokens) {
  const std::string text = File({"th", "the", "in", "zzz"});
  EXPECT_TRUE(LooksLikeTiktoken(text));
  const auto tokenizer = TokenizerFromTiktoken(text, "f", {.pattern = "gpt2"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 260u);
  std::vector<uint32_t> ids;
  // "zzz" is a word of its own, though no merge leads to it; within a word it is three bytes.
  ASSERT_TRUE((*tokenizer)->Encode("thein zzz.zzz", {}, &ids).ok());
  EXPECT_THAT(ids, ElementsAre(257, 258, ' ', 'z', 'z', 'z', '.', 259));
  EXPECT_EQ((*tokenizer)->Decode(ids), "thein zzz.zzz");
}

TEST(TiktokenFileTest, AnUnknownFileNeedsAPattern) {
  EXPECT_THAT(TokenizerFromTiktoken(File({}), "f", {}).status().message(),
              HasSubstr("f: a tiktoken file of 256 ranks is none of the published ones"));
  EXPECT_THAT(TokenizerFromTiktoken(File({}), "f", {.pattern = "x"}).status().message(),
              HasSubstr("known are gpt2"));
}

TEST(TiktokenFileTest, DamagedLinesAreNamed) {
  const auto error = [](const std::string& text) {
    return std::string(TokenizerFromTiktoken(text, "f", {.pattern = "gpt2"}).status().message());
  };
  EXPECT_THAT(error("IQ== 0\nno line\n"), HasSubstr("f: line 2 is not base64"));
  EXPECT_THAT(error("IQ== 0\nIg== 0\n"), HasSubstr("line 2 has the rank 0 of another line"));
  EXPECT_THAT(error("IQ== 0\nIg== 3000000\n"), HasSubstr("far beyond"));
  EXPECT_THAT(error("IQ== 0\nIQ== 1\n"), HasSubstr("stands in another line"));
  EXPECT_THAT(error("IQ== 0\n"), HasSubstr("has no token"));
}

TEST(TiktokenFileTest, PublishedFilesHaveTheirSpecialTokens) {
  const auto id_of = [](size_t ranks, const std::string& text) -> int64_t {
    std::set<uint32_t> ids;
    int64_t found = -1;
    for (const auto& [token, id] : FindPublished(ranks)->specials()) {
      EXPECT_TRUE(ids.insert(id).second);
      found = token == text ? id : found;
    }
    return found;
  };
  // From the models' published configurations.
  EXPECT_EQ(id_of(128000, "<|eot_id|>"), 128009);
  EXPECT_EQ(id_of(128000, "<|reserved_special_token_245|>"), 128255);
  EXPECT_EQ(id_of(151643, "<|im_end|>"), 151645);
  EXPECT_EQ(id_of(200000, "<|eot|>"), 200008);
  EXPECT_EQ(id_of(200000, "<|image_start|>"), 200080);
  EXPECT_EQ(id_of(200000, "<|reasoning_thinking_end|>"), 201143);
  EXPECT_EQ(id_of(100256, "<|endoftext|>"), 100257);
  EXPECT_EQ(FindPublished(7), nullptr);
}

}  // namespace
}  // namespace dtrain::plan::tiktoken_file_test
