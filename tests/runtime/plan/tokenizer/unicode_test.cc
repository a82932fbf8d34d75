#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/unicode/byte_alphabet.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"
#include "runtime/plan/tokenizer/unicode/unicode_normalization.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan::unicode_test {
namespace {

std::string Form(NormalForm form, const std::string& text) {
  std::string storage;
  return std::string(Normalized(form, text, &storage));
}

// From Unicode's NormalizationTest.txt.
TEST(UnicodeTest, NormalFormsAreThoseOfTheStandard) {
  EXPECT_EQ(Form(NormalForm::kNfc, "e\u0301"), "\u00e9");
  EXPECT_EQ(Form(NormalForm::kNfd, "x\u1e0ay"), "xD\u0307y");
  EXPECT_EQ(Form(NormalForm::kNfc, "D\u0307\u0323"), "\u1e0c\u0307");
  EXPECT_EQ(Form(NormalForm::kNfc, "\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(Form(NormalForm::kNfd, "\uac01"), "\u1100\u1161\u11a8");
  EXPECT_EQ(Form(NormalForm::kNfkc, "\ufb01\u00b2"), "fi2");
  EXPECT_EQ(Form(NormalForm::kNfkd, "\u1e9b\u0323"), "s\u0323\u0307");
  EXPECT_EQ(Form(NormalForm::kNfc, "\u212b"), "\u00c5");
}

TEST(UnicodeTest, TextThatDoesNotChangeIsNotCopied) {
  const std::string text = "plain \u00e9 \u4f60 \u0928\u092e";
  std::string storage = "untouched";
  EXPECT_EQ(Normalized(NormalForm::kNfc, text, &storage).data(), text.data());
  EXPECT_EQ(storage, "untouched");
}

TEST(UnicodeTest, CharactersSinceUnicode11AreNotNormalized) {
  EXPECT_EQ(Form(NormalForm::kNfkc, "\u32ff"), "\u32ff");  // Square era name Reiwa, Unicode 12.1.
}

TEST(UnicodeTest, ClassesAreThoseOfUnicode16) {
  const CharClasses& classes = CharClasses::Get();
  EXPECT_EQ(classes.Of('a'), kLetter | kLower);
  EXPECT_EQ(classes.Of('A'), kLetter | kUpper);
  EXPECT_EQ(classes.Of('\n'), kSpace | kNewline);
  EXPECT_EQ(classes.Of(0x4f60), kLetter | kUpper | kLower);
  EXPECT_EQ(classes.Of(0x0301), kUpper | kLower);
  EXPECT_EQ(classes.Of(0x00b2), kNumber | kNumeric);
  EXPECT_EQ(classes.Of(0x11de7), kNumeric);         // Unicode 17.
  EXPECT_EQ(classes.Of(0x180e), 0);                 // No white space since Unicode 6.3.
  EXPECT_EQ(classes.Of(0x1c89), kLetter | kUpper);  // Unicode 16.
  EXPECT_EQ(classes.Of('$') & kPunctuation, kPunctuation);
  EXPECT_EQ(classes.Of(0x20ac) & kPunctuation, 0);
  // As tokenizers 0.22 splits them: punctuation of Unicode 9 is none yet, that of Unicode 8 is
  // still.
  EXPECT_EQ(classes.Of(0x11661) & kPunctuation, 0);
  EXPECT_EQ(classes.Of(0x1183b) & kPunctuation, 0);
  EXPECT_EQ(classes.Of(0x166d) & kPunctuation, kPunctuation);
}

TEST(UnicodeTest, EveryByteHasALetter) {
  EXPECT_EQ(LettersOfBytes(" \n"), "\u0120\u010a");  // As in GPT-2's vocabulary.
  EXPECT_EQ(LetterOfByte('!'), uint32_t{'!'});
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    EXPECT_EQ(BytesOfLetters(LettersOfBytes(bytes)), bytes);
  }
  EXPECT_FALSE(BytesOfLetters("a b").has_value());
}

TEST(UnicodeTest, CodePointsAreReadAsTheyWereWritten) {
  for (uint32_t point = 1; point < 0x110000; point += 37) {
    if (point >= 0xd800 && point < 0xe000) {
      continue;
    }
    std::string text;
    AppendCodePoint(point, &text);
    size_t at = 0;
    ASSERT_EQ(NextCodePoint(text, &at), point);
    ASSERT_EQ(at, text.size());
    ASSERT_EQ(Utf8Length(text[0]), text.size());
    std::string storage;
    ASSERT_EQ(RepairedUtf8(text, &storage).data(), text.data());
  }
}

}  // namespace
}  // namespace dtrain::plan::unicode_test
