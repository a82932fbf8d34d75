// Models of SentencePiece in a program that is linked without its library, as those with LibTorch
// are. The files are written here by hand, after sentencepiece_model.proto.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/sentencepiece_model.h"

namespace dtrain::plan::no_sentencepiece_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<uint32_t>;

constexpr int kNormal = 1;
constexpr int kUnknown = 2;
constexpr int kControl = 3;
constexpr int kUserDefined = 4;
constexpr int kUnigram = 1;
constexpr int kBpe = 2;

// A field that has a length. REQUIRES: `bytes` are fewer than 128.
std::string Field(int number, const std::string& bytes) {
  return absl::StrCat(std::string(1, static_cast<char>(number << 3 | 2)),
                      std::string(1, static_cast<char>(bytes.size())), bytes);
}

std::string Number(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}

std::string Piece(const std::string& text, float score, int type) {
  std::string bits(sizeof(score), '\0');
  std::memcpy(bits.data(), &score, sizeof(score));
  return Field(1, absl::StrCat(Field(1, text), std::string(1, 2 << 3 | 5), bits, Number(3, type)));
}

std::string Model(int kind, int type_of_last) {
  return absl::StrCat(Piece("<unk>", 0, kUnknown), Piece("<s>", 0, kControl),
                      Piece("</s>", 0, kControl), Piece("\u2581", -2, kNormal),
                      Piece("a", -3, kNormal), Piece("b", -4, kNormal), Piece("ab", -1, kNormal),
                      Piece("ba", -0.5, type_of_last), Field(2, Number(3, kind)));
}

TEST(NoSentencePieceTest, BytePairsAndUnigramAreReadWithoutTheLibrary) {
  const auto pairs = TokenizerFromSentencePiece(Model(kBpe, kNormal), "tokenizer.model");
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  Ids ids;
  ASSERT_TRUE((*pairs)->Encode("<s>aba  b?", {}, &ids).ok());
  EXPECT_THAT(ids, ElementsAre(1, 3, 4, 7, 3, 5, 0));  // "ba" has the higher score.
  EXPECT_EQ((*pairs)->Decode(ids), "<s>aba b \u2047 ");
  EXPECT_EQ((*pairs)->end_token(), 2u);

  const auto unigram = TokenizerFromSentencePiece(Model(kUnigram, kNormal), "tokenizer.model");
  ASSERT_TRUE(unigram.ok()) << unigram.status();
  ids.clear();
  ASSERT_TRUE((*unigram)->Encode("abab a??", {}, &ids).ok());
  EXPECT_THAT(ids, ElementsAre(3, 6, 6, 3, 4, 0));
}

TEST(NoSentencePieceTest, WhatNeedsTheLibraryIsRefusedWithWhatToDo) {
  for (const int kind : {kBpe, kUnigram}) {
    const auto refused = TokenizerFromSentencePiece(Model(kind, kUserDefined), "x/tokenizer.model");
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("x/tokenizer.model"), HasSubstr("libsentencepiece"),
                      HasSubstr("save_pretrained")));
  }
}

}  // namespace
}  // namespace dtrain::plan::no_sentencepiece_test
