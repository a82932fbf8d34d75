#include "runtime/plan/tokenizer/ranks/tekken_file.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/tokenizer_json.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::tekken_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSpecialTokens = 30;

Json Row(int rank, const std::string& bytes) {
  return {{"rank", rank}, {"token_bytes", absl::Base64Escape(bytes)}, {"token_str", nullptr}};
}

// The bytes, "th", "the", and a row that the vocabulary leaves out.
Json Document() {
  Json vocab = Json::array();
  for (int rank = 0; rank < 256; ++rank) {
    vocab.push_back(Row(rank, std::string(1, static_cast<char>(rank))));
  }
  vocab.push_back(Row(256, "th"));
  vocab.push_back(Row(257, "the"));
  vocab.push_back(Row(258, "thea"));
  return {{"config",
           {{"pattern", R"(\p{L}+|\p{N}|[^\p{L}\p{N}]+)"},
            {"num_vocab_tokens", 259},
            {"default_vocab_size", kSpecialTokens + 258},
            {"default_num_special_tokens", kSpecialTokens},
            {"version", "v3"}}},
          {"vocab", vocab}};
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const Json& document) {
  return TokenizerFromJson(DumpJson(document), "t.json");
}

std::vector<uint32_t> Ids(const Tokenizer& tokenizer, absl::string_view text,
                          const EncodeOptions& options = {}) {
  std::vector<uint32_t> ids;
  EXPECT_TRUE(tokenizer.Encode(text, options, &ids).ok());
  return ids;
}

// The id of a byte.
uint32_t Of(char byte) { return kSpecialTokens + static_cast<uint8_t>(byte); }

TEST(TekkenFileTest, RanksStandBehindTheSpecialTokens) {
  const auto tokenizer = Load(Document());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Kind(), "tekken");
  EXPECT_EQ((*tokenizer)->vocab_size(), 288U);
  const std::vector<uint32_t> ids = Ids(**tokenizer, "theathe1</s>");
  EXPECT_THAT(ids, ElementsAre(287, Of('a'), 287, Of('1'), 2));
  EXPECT_EQ((*tokenizer)->Decode(ids), "theathe1</s>");
  EXPECT_EQ((*tokenizer)->Decode(ids, /*skip_special=*/true), "theathe1");
  EXPECT_THAT(Ids(**tokenizer, "a", {.add_template = true}), ElementsAre(1, Of('a')));
  EXPECT_EQ((*tokenizer)->begin_token(), 1U);
  EXPECT_EQ((*tokenizer)->end_token(), 2U);
  EXPECT_TRUE((*tokenizer)->IsSpecial(29));
  EXPECT_FALSE((*tokenizer)->IsSpecial(30));
}

TEST(TekkenFileTest, SpecialTokensAreListedOrMistralsFirstOnesAndNumbered) {
  const auto unlisted = Load(Document());
  ASSERT_TRUE(unlisted.ok()) << unlisted.status();
  EXPECT_EQ((*unlisted)->TokenId("[INST]"), 3U);
  EXPECT_EQ((*unlisted)->TokenId("[TOOL_CONTENT]"), 19U);
  EXPECT_EQ((*unlisted)->TokenId("<SPECIAL_20>"), 20U);
  Json document = Document();
  document["special_tokens"] = {{{"rank", 0}, {"token_str", "</s>"}, {"is_control", true}},
                                {{"rank", 7}, {"token_str", "[THINK]"}, {"is_control", true}}};
  const auto listed = Load(document);
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(Ids(**listed, "[THINK]<SPECIAL_1></s>", {.add_template = true}),
              ElementsAre(7, 1, 0));
  EXPECT_EQ((*listed)->begin_token(), std::nullopt);
  EXPECT_EQ((*listed)->end_token(), 0U);
  EXPECT_NE((*listed)->identity(), (*unlisted)->identity());
}

TEST(TekkenFileTest, AFolderMayHoldItAlone) {
  const TempFolder folder;
  folder.Write("tekken.json", DumpJson(Document()));
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Ids(**tokenizer, "the"), ElementsAre(287));
  EXPECT_EQ((*tokenizer)->identity(), (*Load(Document()))->identity());
}

TEST(TekkenFileTest, DamagedAndUnknownPartsAreNamed) {
  const auto error = [](const char* pointer, const Json& value) {
    Json document = Document();
    document[Json::json_pointer(pointer)] = value;
    return std::string(Load(document).status().message());
  };
  EXPECT_THAT(error("/vocab/7/rank", 9), HasSubstr("t.json: vocab[7] has the rank 9"));
  EXPECT_THAT(error("/vocab/7/token_bytes", "?"), HasSubstr("vocab[7]"));
  EXPECT_THAT(error("/vocab/7/token_bytes", ""), HasSubstr("vocab[7]"));
  EXPECT_THAT(error("/vocab/7", 1), HasSubstr("vocab[7]"));
  EXPECT_THAT(error("/vocab/256/token_bytes", "YQ=="), HasSubstr("the bytes of another rank"));
  EXPECT_THAT(error("/vocab", nullptr), HasSubstr("vocab"));
  EXPECT_THAT(error("/config", 1), HasSubstr("config is not an object"));
  EXPECT_THAT(error("/config/default_vocab_size", 290), HasSubstr("default_vocab_size is 290"));
  EXPECT_THAT(error("/config/default_vocab_size", 29), HasSubstr("default_vocab_size is 29"));
  EXPECT_THAT(error("/config/default_vocab_size", 100), HasSubstr("the byte 70 has no token"));
  EXPECT_THAT(error("/config/pattern", "("), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(error("/config/normalizer", "NFC"), HasSubstr("\"normalizer\" is unknown"));
  const Json row = {{"rank", 3}, {"token_str", "<s>"}};
  EXPECT_THAT(error("/special_tokens", Json::array({row, row})),
              HasSubstr("special_tokens[1] has the rank 3"));
  EXPECT_THAT(error("/special_tokens", Json::array({{{"rank", 30}, {"token_str", "a"}}})),
              HasSubstr("ranks are below 30"));
  EXPECT_THAT(error("/special_tokens", Json::array({{{"rank", 3}, {"token_str", "<SPECIAL_4>"}}})),
              HasSubstr("the text \"<SPECIAL_4>\" twice"));
}

}  // namespace
}  // namespace dtrain::plan::tekken_file_test
