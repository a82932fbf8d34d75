#include "runtime/plan/tokenizer/ranks/tiktoken_file.h"

#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/ranks/tiktoken_published.h"

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

// Makes as many ranks as a published file has: behind the bytes stand numbers that no text of a
// test holds.
std::unique_ptr<Tokenizer> Published(size_t ranks) {
  std::vector<std::string> numbers;
  for (size_t rank = 256; rank < ranks; ++rank) {
    numbers.push_back(absl::StrCat("#", rank));
  }
  auto tokenizer = TokenizerFromTiktoken(File(numbers), "f", {});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<uint32_t> Ids(const Tokenizer& tokenizer, absl::string_view text,
                          const EncodeOptions& options = {}) {
  std::vector<uint32_t> ids;
  EXPECT_TRUE(tokenizer.Encode(text, options, &ids).ok());
  return ids;
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
  const absl::Status status = TokenizerFromTiktoken(File({}), "f", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(),
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
  EXPECT_THAT(error("IQ== 0\nIQ== 1\n"),
              HasSubstr("f: the token of rank 1 has the bytes of another"));
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

TEST(TiktokenFileTest, QwensTextIsComposedFirstAsItsProgramDoes) {
  const auto qwen = Published(151643);
  EXPECT_THAT(Ids(*qwen, "e\u0301<|im_end|>"), ElementsAre(0xc3, 0xa9, 151645));
  EXPECT_EQ(Ids(*qwen, "<|im_end|>", {.special_tokens = false}).size(), 10U);
  EXPECT_EQ(qwen->Decode(Ids(*qwen, "e\u0301")), "\u00e9");
  EXPECT_EQ(qwen->end_token(), 151643U);
  EXPECT_EQ(qwen->begin_token(), std::nullopt);
}

TEST(TiktokenFileTest, ATextBeginsWithTheBeginTokenOfAPublishedFileThatHasOne) {
  const auto llama = Published(128000);
  EXPECT_THAT(Ids(*llama, "e\u0301", {.add_template = true}), ElementsAre(128000, 'e', 0xcc, 0x81));
  EXPECT_THAT(Ids(*Published(100256), "e", {.add_template = true}), ElementsAre('e'));
}

}  // namespace
}  // namespace dtrain::plan::tiktoken_file_test
