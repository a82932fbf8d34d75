#include "runtime/plan/tokenizer/tokenizer.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/tokenizer_json.h"
#include "tests/runtime/plan/temp_folder.h"
#include "tests/runtime/plan/tokenizer/small_vocabulary.h"

namespace dtrain::plan::tokenizer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<uint32_t>;

std::unique_ptr<Tokenizer> Small() {
  auto tokenizer = TokenizerFromJson(SmallTokenizerJson(), "small.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, absl::string_view text, EncodeOptions options = {}) {
  Ids ids;
  EXPECT_TRUE(tokenizer.Encode(text, options, &ids).ok());
  return ids;
}

// The small vocabulary with one text in place of another.
absl::Status ErrorOf(const std::string& from, const std::string& to) {
  const std::string text = SmallTokenizerJson();
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return TokenizerFromJson(absl::StrReplaceAll(text, {{from, to}}), "x.json").status();
}

TEST(TokenizerTest, MergesAreDoneInTheirOrderAndAddedTokensAreFound) {
  const auto tokenizer = Small();
  EXPECT_EQ(tokenizer->vocab_size(), 263u);
  EXPECT_EQ(tokenizer->Kind(), "byte-level BPE");
  EXPECT_THAT(Encode(*tokenizer, "hello world"), ElementsAre(259, 260, 'o', 'r', 'l', 'd'));
  EXPECT_THAT(Encode(*tokenizer, "hell<|end|>he<x>"), ElementsAre(258, 261, 256, 262));
  EXPECT_THAT(Encode(*tokenizer, ""), ElementsAre());
  EXPECT_EQ(tokenizer->TokenId("<|end|>"), 261u);
  EXPECT_EQ(tokenizer->TokenId("hello"), 259u);
  EXPECT_EQ(tokenizer->TokenId("absent"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(261));
  EXPECT_FALSE(tokenizer->IsSpecial(262));
  EXPECT_FALSE(tokenizer->IsSpecial(1 << 30));
}

TEST(TokenizerTest, OptionsLeaveSpecialTokensAsTextAndAddTheTemplate) {
  const auto tokenizer = Small();
  EXPECT_THAT(Encode(*tokenizer, "<|end|>", {.special_tokens = false}),
              ElementsAre('<', '|', 'e', 'n', 'd', '|', '>'));
  EXPECT_THAT(Encode(*tokenizer, "he", {.add_template = true}), ElementsAre(256, 261));
}

TEST(TokenizerTest, BytesThatAreNoUtf8BecomeReplacementCharacters) {
  const auto tokenizer = Small();
  // As Python's bytes.decode(errors="replace"): a character that is cut off is one U+FFFD.
  for (const auto& [bytes, text] : {std::pair<std::string, std::string>{"a\xff", "a\uFFFD"},
                                    {"\xe4\xbd", "\uFFFD"},
                                    {"\xe4\xbdz\xc0\x80", "\uFFFDz\uFFFD\uFFFD"},
                                    {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
                                    {"\xf0\x9f\x98", "\uFFFD"}}) {
    EXPECT_EQ(Encode(*tokenizer, bytes), Encode(*tokenizer, text)) << text;
    EXPECT_EQ(tokenizer->Decode(Encode(*tokenizer, bytes)), text);
  }
}

TEST(TokenizerTest, DecodingGivesTheTextBackAlsoTokenByToken) {
  const auto tokenizer = Small();
  const std::string text = "hello w\u00e9 \u4f60\U0001f600<|end|> end";
  const Ids ids = Encode(*tokenizer, text);
  EXPECT_EQ(tokenizer->Decode(ids), text);
  EXPECT_EQ(tokenizer->Decode(ids, /*skip_special=*/true), "hello w\u00e9 \u4f60\U0001f600 end");
  StreamDecoder stream(*tokenizer, /*skip_special=*/false);
  std::string streamed;
  for (const uint32_t id : ids) {
    const std::string part = stream.Push(id);
    EXPECT_EQ(part.find("\uFFFD"), std::string::npos);
    streamed += part;
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Push(0xe4), "");  // The first of three bytes.
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(tokenizer->Decode(Ids{1 << 30, 'a'}), "a");  // A model's embedding is often padded.
}

TEST(TokenizerTest, ThreadsShareATokenizer) {
  const auto tokenizer = Small();
  const std::string text = "hello world hell he <x> \u4f60 12345";
  const Ids expected = Encode(*tokenizer, text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        wrong[t] += Encode(*tokenizer, text) == expected ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST(TokenizerTest, TheIdentityIsThatOfTheRules) {
  const std::string text = SmallTokenizerJson();
  const auto tokenizer = Small();
  EXPECT_EQ(tokenizer->identity().size(), 32u);
  EXPECT_EQ(tokenizer->identity(), (*TokenizerFromJson(text, "elsewhere"))->identity());
  for (const auto& [from, to] :
       {std::pair("\"he ll\", ", ""), std::pair("<x>", "<y>"),
        std::pair("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}")}) {
    const auto other = TokenizerFromJson(absl::StrReplaceAll(text, {{from, to}}), "x");
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE((*other)->identity(), tokenizer->identity()) << from;
  }
}

TEST(TokenizerTest, WhatIsNotSupportedIsRefusedByItsName) {
  const std::string bytes = R"("pre_tokenizer": {"type": "ByteLevel")";
  EXPECT_THAT(ErrorOf(bytes, R"("pre_tokenizer": {"type": "UnicodeScripts")").message(),
              HasSubstr("pre_tokenizer: the pre-tokenizer \"UnicodeScripts\" is not supported"));
  EXPECT_THAT(ErrorOf(R"("normalizer": null)", R"("normalizer": {"type": "Nmt"})").message(),
              HasSubstr("normalizer: the normalizer \"Nmt\""));
  EXPECT_THAT(
      ErrorOf(R"("decoder": {"type": "ByteLevel")", R"("decoder": {"type": "CTC")").message(),
      HasSubstr("decoder: the decoder \"CTC\""));
  EXPECT_THAT(ErrorOf(R"("type": "BPE")", R"("type": "WordLevel")").message(),
              HasSubstr("model: the type \"WordLevel\""));
  EXPECT_THAT(ErrorOf("TemplateProcessing", "Other").message(), HasSubstr("\"Other\""));
  EXPECT_THAT(ErrorOf(R"("dropout": null)", R"("dropout": 0.1)").message(), HasSubstr("dropout"));
  EXPECT_THAT(ErrorOf(R"("dropout": null)", R"("new_rule": true)").message(),
              HasSubstr("\"new_rule\" is unknown"));
  EXPECT_EQ(ErrorOf(bytes, R"("pre_tokenizer": {"type": "Whitespace")").code(),
            absl::StatusCode::kUnimplemented);
}

TEST(TokenizerTest, TemplatesThatDoNotStandAroundATextAreRefused) {
  const std::string text = R"({"Sequence": {"id": "A", "type_id": 0}},)";
  for (const std::string& other :
       {std::string(), text + text, std::string(R"({"Sequence": {"id": "B", "type_id": 0}},)")}) {
    EXPECT_THAT(ErrorOf(text, other).message(), HasSubstr("does not stand once")) << other;
  }
  // The second of two that add tokens takes, in `tokenizers`, the first one's tokens for a pair of
  // texts. ByteLevel adds none.
  const std::string first = R"("post_processor": {"type": "TemplateProcessing",)";
  const auto behind = [&](const std::string& another) {
    const std::string both =
        absl::StrReplaceAll(SmallTokenizerJson(),
                            {{first, absl::StrCat(R"("post_processor": {"type": "Sequence",
            "processors": [)",
                                                  another, R"(, {"type": "TemplateProcessing",)")},
                             {R"("tokens": ["<|end|>"]}}},)", R"("tokens": ["<|end|>"]}}}]},)"}});
    return TokenizerFromJson(both, "x.json").status();
  };
  EXPECT_TRUE(behind(R"({"type": "ByteLevel"})").ok()) << behind(R"({"type": "ByteLevel"})");
  EXPECT_THAT(behind(R"({"type": "BertProcessing", "sep": ["x", 1], "cls": ["y", 2]})").message(),
              HasSubstr("post_processor[1]: \"TemplateProcessing\" behind another post-processor"));
}

// Reads the small vocabulary with Metaspace; `by_stage` and `by_token`: another pre-tokenizer, or
// an added token, cuts the text before.
absl::Status ReadWithMetaspace(const char* scheme, const char* normalizer, bool by_stage,
                               bool by_token) {
  Json json = *ParseJson(SmallTokenizerJson(), "small.json");
  json["normalizer"] = *ParseJson(normalizer, "normalizer");
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}, {"split", true}};
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const Json stages = by_stage ? Json::array({digits, metaspace}) : Json::array({metaspace});
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", stages}};
  json["added_tokens"][1]["normalized"] = by_token;
  return TokenizerFromJson(DumpJson(json), "x.json").status();
}

TEST(TokenizerTest, AStartThatANormalizerMovesIsNotSought) {
  enum Start { kStays, kMayBeParted, kMayBeDropped };
  const std::pair<const char*, Start> normalizers[] = {
      {"null", kStays},
      {R"({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})", kStays},
      {R"({"type": "Strip", "strip_left": false, "strip_right": true})", kStays},
      {R"({"type": "Replace", "pattern": {"String": " "}, "content": "__"})", kMayBeParted},
      {R"({"type": "Prepend", "prepend": "_"})", kMayBeParted},
      {R"({"type": "NFKD"})", kMayBeParted},
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", kMayBeDropped},
      {R"({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]})",
       kMayBeDropped},
      {R"({"type": "BertNormalizer"})", kMayBeDropped},
      {R"({"type": "Replace", "pattern": {"String": "x"}, "content": ""})", kMayBeDropped}};
  for (const auto& [normalizer, start] : normalizers) {
    for (const auto& [by_stage, by_token] :
         {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
      const absl::Status first = ReadWithMetaspace("first", normalizer, by_stage, by_token);
      const bool is_read = start == kStays || (start == kMayBeParted && !by_stage && !by_token);
      EXPECT_EQ(first.ok(), is_read) << normalizer << by_stage << by_token << first;
      if (!is_read) {
        EXPECT_THAT(first.message(), HasSubstr("the prepend_scheme \"first\" is not supported"));
      }
      for (const char* const other : {"always", "never"}) {
        const absl::Status read = ReadWithMetaspace(other, normalizer, by_stage, by_token);
        EXPECT_TRUE(read.ok()) << normalizer << read;
      }
    }
  }
}

// The values are those of `tokenizers`: what a token took of the spaces is not another one's.
TEST(TokenizerTest, ATokenWhoseTextAnotherHasTakenIsNone) {
  for (const bool takes : {false, true}) {
    Json json = *ParseJson(SmallTokenizerJson(), "small.json");
    json["added_tokens"][1]["rstrip"] = true;
    json["added_tokens"].push_back({{"id", 263},
                                    {"content", "  "},
                                    {"single_word", false},
                                    {"lstrip", takes},
                                    {"rstrip", false},
                                    {"normalized", true},
                                    {"special", false}});
    const auto tokenizer = TokenizerFromJson(DumpJson(json), "x.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ(Encode(**tokenizer, "<x>  he"), takes ? Ids({262, 256}) : Ids({262, 263, 256}));
    EXPECT_EQ(Encode(**tokenizer, "he  <x>"), Ids({256, 263, 262}));
  }
}

TEST(TokenizerTest, DamagedFilesAreRefusedWithThePlace) {
  EXPECT_THAT(ErrorOf("\"he ll\"", "\"he  ll\"").message(),
              HasSubstr("\"he  ll\" is not two tokens"));
  EXPECT_THAT(ErrorOf("\"he ll\"", "\"he xy\"").message(),
              HasSubstr("model.merges: the token \"xy\" is not in model.vocab"));
  EXPECT_THAT(ErrorOf("\"ll\": 257", "\"ll\": 256").message(), HasSubstr("the id 256"));
  EXPECT_THAT(ErrorOf("\"ll\": 257", "\"ll\": \"x\"").message(), HasSubstr("no number as its id"));
  EXPECT_THAT(ErrorOf("\"id\": 262", "\"id\": 300").message(),
              HasSubstr("added_tokens[1]: the token \"<x>\" has the id 300"));
  EXPECT_THAT(ErrorOf("\"ids\": [261]", "\"ids\": [999]").message(), HasSubstr("the id 999"));
  EXPECT_THAT(TokenizerFromJson("{\"model\": ", "y.json").status().message(),
              HasSubstr("y.json: byte "));
  EXPECT_THAT(TokenizerFromJson("{}", "y.json").status().message(), HasSubstr("no object"));
}

TEST(TokenizerTest, AFolderTellsTheEndsOfADocument) {
  const TempFolder folder;
  EXPECT_EQ(Tokenizer::Load(folder.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Tokenizer::Load(folder.path() + "/none").status().message(),
              HasSubstr("there is no such tokenizer"));
  const auto write = [&](const char* name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomic(folder.path() + "/" + name, text).ok());
  };
  write("tokenizer.json", SmallTokenizerJson());
  auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->end_token(), std::nullopt);
  write("tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}, "bos_token": "<x>"})");
  write("generation_config.json", R"({"eos_token_id": [262, 261, 99999]})");
  tokenizer = Tokenizer::Load(folder.path() + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->begin_token(), 262u);
  EXPECT_EQ((*tokenizer)->end_token(), 261u);
  EXPECT_THAT((*tokenizer)->stop_tokens(), ElementsAre(261, 262));
  write("tokenizer_config.json", "{");
  EXPECT_THAT(Tokenizer::Load(folder.path()).status().message(),
              HasSubstr("tokenizer_config.json"));
}

TEST(TokenizerTest, AFileThatIsNoSentencePieceModelIsRefused) {
  const TempFolder folder;
  ASSERT_TRUE(WriteFileAtomic(folder.path() + "/tokenizer.model", "\x01\x02 no model").ok());
  EXPECT_THAT(Tokenizer::Load(folder.path()).status().message(),
              HasSubstr("is no model of SentencePiece"));
}

}  // namespace
}  // namespace dtrain::plan::tokenizer_test
