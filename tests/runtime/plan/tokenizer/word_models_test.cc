// Values are those of Hugging Face's `tokenizers` for the same files.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/tokenizer_json.h"

namespace dtrain::plan::word_models_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<uint32_t>;

constexpr absl::string_view kWordPiece = R"({"version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 1, "content": "[SEP]", "single_word": false, "lstrip": false,
    "rstrip": false, "normalized": false, "special": true}],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
    "strip_accents": null, "lowercase": true},
  "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
  "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 8,
    "vocab": {"[UNK]": 0, "[SEP]": 1, "un": 2, "##aff": 3, "##able": 4, "able": 5, ".": 6,
      "caf": 7, "##e": 8, "\u4f60": 9, "##a": 10}}})";

constexpr absl::string_view kUnigram = R"({"version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [], "normalizer": null,
  "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
    "split": true},
  "post_processor": null,
  "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
    "split": true},
  "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
    "vocab": [["<unk>", 0.0], ["\u2581", -2.0], ["a", -1.5], ["b", -2.5], ["ab", -3.0],
      ["\u2581ab", -9.0], ["abab", -8.5], ["<0xC3>", -20.0], ["<0xA9>", -20.0]]}})";

std::unique_ptr<Tokenizer> Made(absl::string_view json) {
  auto tokenizer = TokenizerFromJson(json, "x.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, absl::string_view text) {
  Ids ids;
  EXPECT_TRUE(tokenizer.Encode(text, {}, &ids).ok());
  return ids;
}

std::string ErrorOf(absl::string_view json, absl::string_view from, absl::string_view to) {
  EXPECT_NE(json.find(from), absl::string_view::npos) << from;
  const std::string text = absl::StrReplaceAll(json, {{from, to}});
  return std::string(TokenizerFromJson(text, "x.json").status().message());
}

TEST(WordModelsTest, WordPieceTakesTheLongestPieceAndLeavesUnknownWordsWhole) {
  const auto tokenizer = Made(kWordPiece);
  EXPECT_EQ(tokenizer->Kind(), "WordPiece");
  EXPECT_THAT(Encode(*tokenizer, "Unaffable able."), ElementsAre(0, 5, 6));  // 9 characters.
  EXPECT_THAT(Encode(*tokenizer, "unable UNAFFA unx"), ElementsAre(2, 4, 2, 3, 10, 0));
  EXPECT_THAT(Encode(*tokenizer, "Caf\u00e9[SEP]able\u4f60able"), ElementsAre(7, 8, 1, 5, 9, 5));
  EXPECT_THAT(Encode(*tokenizer, " \t\x01"), ElementsAre());
  EXPECT_EQ(tokenizer->Decode(Ids{2, 4, 6, 5}), "unable. able");
}

TEST(WordModelsTest, UnigramTakesTheBestSumAndFusesWhatIsUnknown) {
  const auto tokenizer = Made(kUnigram);
  EXPECT_EQ(tokenizer->Kind(), "Unigram");
  EXPECT_THAT(Encode(*tokenizer, "ab"), ElementsAre(1, 4));
  EXPECT_THAT(Encode(*tokenizer, "abab ba"), ElementsAre(1, 4, 4, 1, 3, 2));
  EXPECT_THAT(Encode(*tokenizer, "axyzb \u00e9"), ElementsAre(1, 2, 0, 3, 1, 0));
  EXPECT_EQ(tokenizer->Decode(Ids{1, 4, 1, 3}), "ab b");
}

TEST(WordModelsTest, UnigramFallsBackToBytesWhereEachHasAPiece) {
  const auto tokenizer = Made(
      absl::StrReplaceAll(kUnigram, {{"\"byte_fallback\": false", "\"byte_fallback\": true"}}));
  EXPECT_THAT(Encode(*tokenizer, "a\u00e9b\u00e8"), ElementsAre(1, 2, 7, 8, 3, 0));
}

TEST(WordModelsTest, WhatIsDamagedOrNotSupportedIsRefusedByItsName) {
  EXPECT_THAT(ErrorOf(kWordPiece, "\"[UNK]\",", "\"[NONE]\","), HasSubstr("[NONE]"));
  EXPECT_THAT(ErrorOf(kWordPiece, "BertPreTokenizer", "ByteLevel"), HasSubstr("ByteLevel"));
  EXPECT_THAT(ErrorOf(kUnigram, "\"unk_id\": 0", "\"unk_id\": null"), HasSubstr("unk_id"));
  EXPECT_THAT(ErrorOf(kUnigram, "\"unk_id\": 0", "\"unk_id\": 9"), HasSubstr("id 9"));
  EXPECT_THAT(ErrorOf(kUnigram, "[\"b\", -2.5]", "[\"b\"]"), HasSubstr("model.vocab[3]"));
  EXPECT_THAT(ErrorOf(kUnigram, "\"normalizer\": null",
                      R"("normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"})"),
              HasSubstr("precompiled_charsmap"));
}

}  // namespace
}  // namespace dtrain::plan::word_models_test
