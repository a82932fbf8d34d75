#include "runtime/plan/tokenizer/train_tokenizer.h"

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/tokenizer/tokenizer.h"
#include "runtime/plan/tokenizer/train_pairs.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::train_tokenizer_test {
namespace {

using ::testing::HasSubstr;

// The example of the paper (Sennrich et al. 2016): low 5, lower 2, newest 6, widest 3.
TEST(TrainTokenizerTest, PairsAreLearnedByTheirFrequency) {
  const std::vector<BpeMerge> merges =
      LearnMerges({{"low", 5}, {"lower", 2}, {"newest", 6}, {"widest", 3}}, 4, 1);
  const auto is = [](const BpeMerge& merge, uint32_t left, uint32_t right) {
    return merge.left == left && merge.right == right;
  };
  ASSERT_EQ(merges.size(), 4u);
  EXPECT_TRUE(is(merges[0], 'e', 's'));                    // 9 times.
  EXPECT_TRUE(is(merges[1], 256, 't'));                    // "est": 9 times.
  EXPECT_TRUE(is(merges[2], 'l', 'o'));                    // 7 times.
  EXPECT_TRUE(is(merges[3], 258, 'w'));                    // "low": 7 times.
  EXPECT_EQ(LearnMerges({{"aaaa", 1}}, 9, 1).size(), 2u);  // "aa", "aaaa".
  EXPECT_TRUE(LearnMerges({{"ab", 1}}, 9, 2).empty());
}

NextDocument From(std::vector<std::string> documents) {
  return [documents = std::move(documents),
          i = size_t{0}](std::string* document) mutable -> absl::StatusOr<bool> {
    if (i == documents.size()) {
      return false;
    }
    *document = documents[i++];
    return true;
  };
}

TEST(TrainTokenizerTest, TheFileIsReadAndDoesNotDependOnThreads) {
  const TempFolder folder;
  std::vector<std::string> documents;
  for (int i = 0; i < 50; ++i) {
    documents.push_back("the newest and the widest of the lower \u4f60\u597d " + std::to_string(i));
  }
  TrainTokenizerOptions options;
  options.vocab_size = 280;
  std::string first;
  for (const int threads : {1, 3}) {
    options.threads = threads;
    const auto report = TrainTokenizer(From(documents), options, folder.path());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->vocab_size, 280);
    EXPECT_EQ(report->documents, 50);
    const std::string text = *ReadFile(folder.path() + "/tokenizer.json");
    EXPECT_TRUE(first.empty() || text == first);
    first = text;
  }
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 280u);
  EXPECT_EQ((*tokenizer)->end_token(), 279u);
  std::vector<uint32_t> ids;
  ASSERT_TRUE((*tokenizer)->Encode("the widest", {}, &ids).ok());
  EXPECT_LT(ids.size(), 6u);
  EXPECT_EQ((*tokenizer)->Decode(ids), "the widest");
}

TEST(TrainTokenizerTest, OptionsThatCannotBeAreRefused) {
  const TempFolder folder;
  const auto error = [&](const TrainTokenizerOptions& options) {
    return std::string(TrainTokenizer(From({"text"}), options, folder.path()).status().message());
  };
  EXPECT_THAT(error({.vocab_size = 256}), HasSubstr("it must be from 257"));
  EXPECT_THAT(error({.pattern = "cl100k"}), HasSubstr("known are gpt2, llama3"));
  EXPECT_THAT(error({.special_tokens = {"<a>", "<a>"}}), HasSubstr("given once"));
  EXPECT_THAT(error({.min_frequency = 0}), HasSubstr("the least frequency is 0"));
  EXPECT_THAT(error({.special_tokens = {"<a>", "text"}, .min_frequency = 1}),
              HasSubstr("the special token \"text\" is one that the text has taught as well"));
  EXPECT_FALSE(FileExists(folder.path() + "/tokenizer.json"));
  EXPECT_THAT(TrainTokenizer(From({""}), {}, folder.path()).status().message(),
              HasSubstr("there is no text to learn from: 1 documents have 0 bytes"));
}

}  // namespace
}  // namespace dtrain::plan::train_tokenizer_test
