// The tokenizer of a training, by the files that lie where people put them.
#include "generate/training_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "generate/sample.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"
#include "tests/examples/small_gpt.h"
#include "tests/runtime/plan/temp_folder.h"

namespace training_tokenizer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// A folder with the token file train.bin, and what a test adds.
class TrainingTokenizerTest : public ::testing::Test {
 protected:
  TrainingTokenizerTest() { folder_.Write("data/train.bin", "tokens"); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }

  TrainingTokenizer Found(const std::string& pretrained, const SampleOptions& sample = {}) const {
    const auto config =
        dtrain::Config::Parse(absl::StrCat(R"({"train_batch_size": 1, "data": {"train": [")",
                                           Path("data/train.bin"), "\"]}}"),
                              "run.json", {}, 1);
    EXPECT_TRUE(config.ok()) << config.status();
    auto tokenizer = TokenizerOfTraining(*config, sample, pretrained);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  }

  dtrain::plan::TempFolder folder_;
};

// Whether the end of the run shows text, in a vocabulary that is not of bytes.
bool Shows(const TrainingTokenizer& tokenizer) {
  const GptOptions model = SmallGpt(Architecture::kLlama);
  return ShowsText(model, {.tokens = 5, .tokenizer = tokenizer.source});
}

TEST_F(TrainingTokenizerTest, IsThatOfTheCorpusWhereNothingElseIsNamed) {
  EXPECT_THAT(Found("").files, IsEmpty());
  EXPECT_FALSE(Shows(Found("")));
  folder_.Write("data/corpus.tokenizer/tokenizer.json", "{1}");
  const TrainingTokenizer found = Found("");
  EXPECT_THAT(found.files, ElementsAre(Pair("tokenizer.json", "{1}")));
  EXPECT_EQ(found.source, Path("data/corpus.tokenizer"));
  EXPECT_TRUE(Shows(found));
  folder_.Write("own/tokenizer.json", "{2}");
  EXPECT_THAT(Found("", {.tokenizer = Path("own")}).files,
              ElementsAre(Pair("tokenizer.json", "{2}")));
}

TEST_F(TrainingTokenizerTest, IsThatOfThePretrainedModelWithoutASampleToo) {
  folder_.Write("data/corpus.tokenizer/tokenizer.json", "{1}");
  folder_.Write("model/tokenizer.json", "{3}");
  const TrainingTokenizer found = Found(Path("model"), {.tokens = 0});
  EXPECT_THAT(found.files, ElementsAre(Pair("tokenizer.json", "{3}")));
  EXPECT_EQ(found.source, Path("model"));
}

TEST_F(TrainingTokenizerTest, ATiktokenFileIsAVocabularyAndSettingsAloneAreNone) {
  folder_.Write("data/corpus.tokenizer/tokenizer.json", "{1}");
  folder_.Write("model/generation_config.json", "{}");
  EXPECT_EQ(Found(Path("model")).source, Path("data/corpus.tokenizer"));
  folder_.Write("model/qwen.tiktoken", "ranks");
  const TrainingTokenizer found = Found(Path("model"));
  EXPECT_EQ(found.source, Path("model"));
  EXPECT_THAT(found.files,
              ElementsAre(Pair("qwen.tiktoken", "ranks"), Pair("generation_config.json", "{}")));
  EXPECT_TRUE(Shows(found));
}

TEST_F(TrainingTokenizerTest, OfBytesIsKnownByItsNameAndByItsCorpus) {
  const auto names_bytes = [](const TrainingTokenizer& tokenizer) {
    return tokenizer.source == "bytes" && tokenizer.files == dtrain::plan::BytesTokenizerFiles();
  };
  EXPECT_TRUE(names_bytes(Found("", {.tokenizer = "bytes"})));
  folder_.Write("data/corpus.json", R"({"tokenizer": "bytes"})");
  EXPECT_TRUE(names_bytes(Found("")));
}

TEST_F(TrainingTokenizerTest, FromAnAddressIsKeptInTheRunDirectoryUnlessItIsOfBytes) {
  const auto bytes = KeepTokenizer(dtrain::plan::BytesTokenizerFiles(), Path("run"));
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->source, "bytes");
  EXPECT_EQ(KeepTokenizer({}, Path("run"))->source, "");
  EXPECT_FALSE(std::filesystem::exists(Path("run")));
  const auto kept = KeepTokenizer({{"tokenizer.json", "{5}"}}, Path("run"));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->source, Path("run/corpus.tokenizer"));
  EXPECT_THAT(kept->files, ElementsAre(Pair("tokenizer.json", "{5}")));
  EXPECT_EQ(*dtrain::ReadFile(Path("run/corpus.tokenizer/tokenizer.json")), "{5}");
  EXPECT_TRUE(Shows(*kept));
}

// A model with more rows than bytes has the text of bytes too.
TEST(SampleText, OfBytesInALargerVocabularyBeginsWithThePrompt) {
  at::manual_seed(17);
  Gpt model(SmallGpt(Architecture::kLlama, {.vocabulary = 300}));
  const auto text = SampleText(*model, {.prompt = "int a;", .tokens = 5, .tokenizer = "bytes"});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->substr(0, 6), "int a;");
}

}  // namespace
}  // namespace training_tokenizer_test
