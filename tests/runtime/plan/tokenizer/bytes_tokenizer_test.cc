#include "runtime/plan/tokenizer/bytes_tokenizer.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::bytes_tokenizer_test {
namespace {

using ::testing::ElementsAre;

std::vector<uint32_t> BytesOf(const std::string& text) {
  std::vector<uint32_t> ids;
  for (const char byte : text) {
    ids.push_back(static_cast<unsigned char>(byte));
  }
  return ids;
}

std::vector<uint32_t> Encode(const Tokenizer& tokenizer, const std::string& text,
                             const EncodeOptions& options) {
  std::vector<uint32_t> ids;
  EXPECT_TRUE(tokenizer.Encode(text, options, &ids).ok()) << text;
  return ids;
}

// Letters by which byte-level vocabularies write bytes are among them: they stay two bytes each.
const char* const kTexts[] = {"",
                              " a  b\n\t",
                              "\u0100\u0120\u010a\u0142",
                              "Stra\u00dfe",
                              "\u4e16\u754c \U0001f642 \u0645\u0631\u062d\u0628\u0627",
                              "don't stop: x = y[1:2]\r\n"};

TEST(BytesTokenizerTest, IdsAreTheBytesOfTheText) {
  const auto tokenizer = MakeBytesTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 256U);
  EXPECT_EQ((*tokenizer)->Kind(), "byte-level BPE");
  for (const std::string text : kTexts) {
    for (const bool special : {true, false}) {
      EXPECT_EQ(Encode(**tokenizer, text, {.special_tokens = special, .add_template = true}),
                BytesOf(text));
    }
    EXPECT_EQ((*tokenizer)->Decode(BytesOf(text)), text);
  }
  for (uint32_t byte = 1; byte < 0x80; ++byte) {
    const std::string text(1, static_cast<char>(byte));
    EXPECT_THAT(Encode(**tokenizer, text, {}), ElementsAre(byte));
    EXPECT_EQ((*tokenizer)->Decode({byte}), text);
  }
}

TEST(BytesTokenizerTest, TheZeroByteEndsATextAndIsLeftOutOfIt) {
  const auto tokenizer = MakeBytesTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->end_token(), 0U);
  EXPECT_THAT((*tokenizer)->stop_tokens(), ElementsAre(0));
  EXPECT_TRUE((*tokenizer)->IsSpecial(0));
  EXPECT_FALSE((*tokenizer)->IsSpecial('a'));
  const std::string text("a\0b", 3);
  EXPECT_THAT(Encode(**tokenizer, text, {}), ElementsAre('a', 0, 'b'));
  EXPECT_EQ((*tokenizer)->Decode({'a', 0, 'b'}), text);
  EXPECT_EQ((*tokenizer)->Decode({'a', 0, 'b'}, /*skip_special=*/true), "ab");
}

TEST(BytesTokenizerTest, TheFilesOfAFolderAreTheSameTokenizer) {
  const TempFolder folder;
  for (const auto& [name, text] : BytesTokenizerFiles()) {
    folder.Write(name, text);
  }
  const auto loaded = Tokenizer::Load(folder.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const auto made = MakeBytesTokenizer();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*loaded)->identity(), (*made)->identity());
  EXPECT_EQ((*loaded)->end_token(), (*made)->end_token());
  EXPECT_EQ((*loaded)->stop_tokens(), (*made)->stop_tokens());
  for (const std::string text : kTexts) {
    EXPECT_EQ(Encode(**loaded, text, {}), BytesOf(text));
  }
}

}  // namespace
}  // namespace dtrain::plan::bytes_tokenizer_test
