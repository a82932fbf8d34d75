#include "runtime/plan/data/tokenizer_files.h"

#include <filesystem>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/prepare_corpus.h"
#include "runtime/plan/data/text/prepare_text.h"
#include "runtime/plan/data/text/text_encoder.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"
#include "runtime/plan/tokenizer/tokenizer.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::tokenizer_files_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAreArray;

TEST(TokenizerFilesTest, AFolderGivesItsVocabularyAndSettingsAlone) {
  const TempFolder folder;
  folder.Write("model.safetensors", "weights");
  folder.Write("tokenizer.json", "{}");
  folder.Write("generation_config.json", "{\"a\": 1}");
  folder.Write("x.tiktoken", "ranks");  // tokenizer.json comes before it.
  std::filesystem::create_directory(folder.path() + "/merges.txt");  // No file.
  EXPECT_THAT(
      *ReadTokenizerFiles(folder.path()),
      ElementsAre(Pair("tokenizer.json", "{}"), Pair("generation_config.json", "{\"a\": 1}")));
  std::filesystem::remove(folder.path() + "/tokenizer.json");
  EXPECT_THAT(
      *ReadTokenizerFiles(folder.path()),
      ElementsAre(Pair("x.tiktoken", "ranks"), Pair("generation_config.json", "{\"a\": 1}")));
  std::filesystem::remove(folder.path() + "/x.tiktoken");
  folder.Write("tekken.json", "{2}");
  EXPECT_THAT(
      *ReadTokenizerFiles(folder.path()),
      ElementsAre(Pair("tekken.json", "{2}"), Pair("generation_config.json", "{\"a\": 1}")));
}

TEST(TokenizerFilesTest, AFileGetsTheNameByWhichItsFolderIsKnown) {
  const TempFolder folder;
  folder.Write("tokenizer.model", "another");
  folder.Write("tokenizer_config.json", "{}");
  EXPECT_THAT(*FilesOfTokenizer(folder.Write("mine.json", "{1}")),
              ElementsAre(Pair("tokenizer.json", "{1}"), Pair("tokenizer_config.json", "{}")));
  EXPECT_THAT(*FilesOfTokenizer(folder.Write("tekken_240911.json", "{2}")),
              ElementsAre(Pair("tekken.json", "{2}"), Pair("tokenizer_config.json", "{}")));
  EXPECT_THAT(*FilesOfTokenizer(folder.Write("mine.model", "m")),
              ElementsAre(Pair("tokenizer.model", "m"), Pair("tokenizer_config.json", "{}")));
  EXPECT_THAT(*FilesOfTokenizer(folder.Write("mine.tiktoken", "t")),
              ElementsAre(Pair("mine.tiktoken", "t"), Pair("tokenizer_config.json", "{}")));
  EXPECT_FALSE(FilesOfTokenizer(folder.path() + "/nowhere.json").ok());
}

TEST(TokenizerFilesTest, AnEarlierCorpusLeavesNothingBehind) {
  const TempFolder folder;
  const std::string own = folder.Write("tokenizer.json", "the user's");
  ASSERT_TRUE(
      WriteCorpusTokenizer(folder.path(), {{"merges.txt", "a b"}, {"vocab.json", "{}"}}).ok());
  ASSERT_TRUE(WriteCorpusTokenizer(folder.path(), {{"tokenizer.json", "{}"}}).ok());
  const std::string kept = CorpusTokenizerFolder(folder.path());
  EXPECT_THAT(*ReadTokenizerFiles(kept), ElementsAre(Pair("tokenizer.json", "{}")));
  ASSERT_TRUE(WriteCorpusTokenizer(folder.path(), {}).ok());
  EXPECT_FALSE(FileExists(kept));
  EXPECT_EQ(*ReadFile(own), "the user's");
}

TEST(TokenizerFilesTest, AKeptTokenizerNamesTheTokenThatEndsDocuments) {
  const TempFolder folder;
  folder.Write("plain/tokenizer.json", BytesTokenizerFiles()[0].second);
  const std::string plain = folder.path() + "/plain";
  EXPECT_FALSE(TextEncoder::OfTokenizer(plain, "").ok()) << "its files name none";
  const auto encoder = TextEncoder::OfTokenizer(plain, std::string(1, '\0'));
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  ASSERT_TRUE(WriteCorpusTokenizer(folder.path(), (*encoder)->files()).ok());
  const auto kept = Tokenizer::Load(CorpusTokenizerFolder(folder.path()));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ((*kept)->end_token(), 0U);
}

// By both ways of making a corpus: of folders' bytes, and of records with any tokenizer.
TEST(TokenizerFilesTest, ACorpusKeepsTheTokenizerOfItsTokens) {
  const TempFolder folder;
  for (int i = 0; i < 9; ++i) {
    folder.Write("texts/" + std::to_string(i) + ".txt", "text number " + std::to_string(i));
  }
  PrepareOptions bytes;
  bytes.folders = {folder.path() + "/texts"};
  bytes.out = folder.path() + "/bytes";
  bytes.tokenizer = BytesTokenizerFiles();
  ASSERT_TRUE(PrepareCorpus(bytes).ok());
  const auto of_bytes = Tokenizer::Load(CorpusTokenizerFolder(bytes.out));
  ASSERT_TRUE(of_bytes.ok()) << of_bytes.status();
  EXPECT_EQ((*of_bytes)->identity(), (*MakeBytesTokenizer())->identity());

  PrepareTextOptions texts;
  texts.sources = bytes.folders;
  texts.out = folder.path() + "/tokens";
  texts.threads = 1;
  const auto encoder = TextEncoder::OfTokenizer(CorpusTokenizerFolder(bytes.out), "");
  ASSERT_TRUE(encoder.ok()) << encoder.status();
  EXPECT_EQ((*encoder)->end_token(), 0U);
  const auto byte_encoder = TextEncoder::OfBytes();
  for (const TextEncoder* const each : {byte_encoder.get(), encoder->get()}) {
    ASSERT_TRUE(PrepareText(texts, *each).ok());
    EXPECT_THAT(*ReadTokenizerFiles(CorpusTokenizerFolder(texts.out)),
                UnorderedElementsAreArray(BytesTokenizerFiles()));
  }
}

}  // namespace
}  // namespace dtrain::plan::tokenizer_files_test
