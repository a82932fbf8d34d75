#include "runtime/plan/data/prepare_corpus.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/token_file.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::prepare_corpus_test {
namespace {

using ::testing::HasSubstr;

class PrepareCorpusTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    const std::string path = in() + "/" + name;
    ASSERT_TRUE(MakeDirectories(path.substr(0, path.rfind('/'))).ok());
    std::ofstream(path, std::ios::binary) << content;  // Hundreds of them: no fsync.
  }
  void WriteMany(int count) {
    for (int i = 0; i < count; ++i) {
      Write(absl::StrCat("d", i % 7, "/file", i, ".h"), absl::StrCat("// text number ", i, "\n"));
    }
  }
  std::string in() const { return folder_.path() + "/in"; }
  std::string out() const { return folder_.path() + "/out"; }
  PrepareOptions Options() const {
    PrepareOptions options;
    options.folders = {in()};
    options.out = out();
    return options;
  }
  std::string Text(const std::string& name) const {
    const TokenFile file = *TokenFile::Open(out() + "/" + name);
    EXPECT_EQ(file.header().vocabulary, 256);
    std::vector<int64_t> tokens(static_cast<size_t>(file.tokens()));
    EXPECT_TRUE(file.Copy(0, absl::MakeSpan(tokens), 256).ok());
    return {tokens.begin(), tokens.end()};
  }
  TempFolder folder_;
};

TEST_F(PrepareCorpusTest, EveryFileIsInOneSplitAndEndsWithAZero) {
  WriteMany(300);
  const absl::StatusOr<PrepareReport> report = PrepareCorpus(Options());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->train.files + report->validation.files, 300);
  EXPECT_GE(report->validation.files, 9);  // 7% = 21 expected.
  EXPECT_LE(report->validation.files, 40);
  const std::string train = Text("train.bin");
  const std::string validation = Text("val.bin");
  for (int i = 0; i < 300; ++i) {
    const std::string text = absl::StrCat("// text number ", i, "\n") + '\0';
    const bool in_train = train.find(text) != std::string::npos;
    const bool in_validation = validation.find(text) != std::string::npos;
    EXPECT_NE(in_train, in_validation) << i;
  }
  EXPECT_EQ(report->train.tokens, static_cast<int64_t>(train.size()));
  EXPECT_THAT(PrepareTable(*report), HasSubstr("validation"));
  EXPECT_THAT(*ReadFile(out() + "/corpus.json"), HasSubstr("\"vocabulary\": 256"));
}

TEST_F(PrepareCorpusTest, TheOutputInASourceFolderIsNoSource) {
  WriteMany(20);
  PrepareOptions options = Options();
  options.out = in() + "/out";
  const absl::StatusOr<PrepareReport> first = PrepareCorpus(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<PrepareReport> again = PrepareCorpus(options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->files_found, 20);
  EXPECT_EQ(again->train.tokens, first->train.tokens);
  options.out = in() + "/d1/..";
  EXPECT_THAT(PrepareCorpus(options).status().message(), HasSubstr("is a source too"));
  EXPECT_FALSE(ReadFile(in() + "/train.bin").ok());
}

// A file's name decides, in every build: checkpoints know the text by its hash. The counts were
// worked out by another program.
TEST_F(PrepareCorpusTest, TheShareForValidationIsOfTheNamesHashes) {
  WriteMany(300);
  for (const auto& [percent, files] : {std::pair(1, 3), std::pair(7, 17), std::pair(50, 155)}) {
    PrepareOptions options = Options();
    options.validation_percent = percent;
    const absl::StatusOr<PrepareReport> report = PrepareCorpus(options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->validation.files, files) << percent;
    EXPECT_EQ(report->train.files, 300 - files) << percent;
  }
}

TEST_F(PrepareCorpusTest, OptionsAreTakenUpToTheirBounds) {
  Write("a.h", "int a;\n");
  Write("b.h", "int b;\n");
  const auto with = [&](auto change) {
    PrepareOptions options = Options();
    change(options);
    return PrepareCorpus(options).ok();
  };
  for (const auto& [percent, taken] : {std::pair(0, false), {1, true}, {50, true}, {51, false}}) {
    EXPECT_EQ(with([&, value = percent](auto& o) { o.validation_percent = value; }), taken)
        << percent;
  }
  const int64_t most = (int64_t{1} << 31) - 1;
  for (const auto& [bytes, taken] :
       {std::pair(int64_t{0}, false), {int64_t{16}, true}, {most, true}, {most + 1, false}}) {
    EXPECT_EQ(with([&, value = bytes](auto& o) { o.bytes_max = value; }), taken) << bytes;
  }
  for (const auto& [bytes, taken] :
       {std::pair(int64_t{0}, false), {int64_t{6}, false}, {int64_t{7}, true}}) {
    EXPECT_EQ(with([&, value = bytes](auto& o) { o.file_bytes_max = value; }), taken) << bytes;
  }
  EXPECT_FALSE(with([](auto& o) { o.out.clear(); }));
}

TEST_F(PrepareCorpusTest, WhatCannotBeWrittenIsNamed) {
  Write("a.h", "int a;\n");
  Write("b.h", "int b;\n");
  for (const char* const name : {"train.bin", "val.bin", "corpus.json"}) {
    const std::string taken = out() + "/" + name;
    ASSERT_TRUE(MakeDirectories(taken).ok());
    EXPECT_THAT(std::string(PrepareCorpus(Options()).status().message()), HasSubstr(taken));
    ASSERT_EQ(rmdir(taken.c_str()), 0);
  }
  EXPECT_TRUE(PrepareCorpus(Options()).ok());
}

TEST_F(PrepareCorpusTest, SameFolderGivesTheSameBytesWhereverItLies) {
  WriteMany(50);
  ASSERT_TRUE(PrepareCorpus(Options()).ok());
  const std::string first = *ReadFile(out() + "/train.bin");
  ASSERT_EQ(rename(in().c_str(), (folder_.path() + "/moved").c_str()), 0);
  PrepareOptions options = Options();
  options.folders = {folder_.path() + "/moved"};
  options.out = folder_.path() + "/out2/deeper";
  ASSERT_TRUE(PrepareCorpus(options).ok());
  EXPECT_EQ(first, *ReadFile(options.out + "/train.bin"));
}

TEST_F(PrepareCorpusTest, LeavesOutWhatIsNotWantedText) {
  Write("a.h", "int a;\n");
  Write("b.h", "int b;\n");
  Write("copy/a.h", "int a;\n");
  Write("sub/vector", "#include\n");
  Write("c.txt", "other\n");
  Write("binary.h", std::string("a\0b", 3));
  Write("latin1.h", "caf\xe9\n");
  Write("empty.h", "");
  Write("long.h", std::string(2001, 'x'));
  Write("longest.h", std::string(2000, 'y'));
  ASSERT_EQ(symlink((in() + "/c.txt").c_str(), (in() + "/link.h").c_str()), 0);
  PrepareOptions options = Options();
  options.extensions = {".h", ""};
  options.file_bytes_max = 2000;
  const absl::StatusOr<PrepareReport> report = PrepareCorpus(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->files_found, 9);
  EXPECT_EQ(report->skipped_not_text, 3);
  EXPECT_EQ(report->skipped_long, 1);
  EXPECT_EQ(report->skipped_equal, 1);
  EXPECT_EQ(report->train.files + report->validation.files, 4);
  EXPECT_EQ((Text("train.bin") + Text("val.bin")).size(), 7u + 7u + 9u + 2000u + 4u);
}

TEST_F(PrepareCorpusTest, StopsAtTheSizeLimit) {
  WriteMany(100);
  PrepareOptions options = Options();
  options.bytes_max = 500;
  const absl::StatusOr<PrepareReport> report = PrepareCorpus(options);
  ASSERT_TRUE(report.ok());
  EXPECT_LE(report->train.tokens + report->validation.tokens, 500);
  EXPECT_GT(report->train.tokens + report->validation.tokens, 400);
  EXPECT_GT(report->skipped_beyond_limit, 50);
}

TEST_F(PrepareCorpusTest, FewFilesStillFillBothSplits) {
  Write("only.h", "0123456789abcdefghijklmnopqrst\n");
  ASSERT_TRUE(PrepareCorpus(Options()).ok());
  EXPECT_EQ(Text("train.bin"), std::string("0123456789abcdefghijklmnopq") + '\0');
  EXPECT_EQ(Text("val.bin"), std::string("rst\n") + '\0');
  Write("second.h", "more\n");
  const absl::StatusOr<PrepareReport> report = PrepareCorpus(Options());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->train.files, 1);
  EXPECT_EQ(report->validation.files, 1);
}

TEST_F(PrepareCorpusTest, FailureNamesTheCauseAndLeavesOldFilesAlone) {
  WriteMany(20);
  ASSERT_TRUE(PrepareCorpus(Options()).ok());
  const std::string before = *ReadFile(out() + "/train.bin");
  PrepareOptions options = Options();
  options.folders = {folder_.path() + "/nothing"};
  EXPECT_EQ(PrepareCorpus(options).status().code(), absl::StatusCode::kNotFound);
  options = Options();
  options.extensions = {".rs"};
  EXPECT_THAT(std::string(PrepareCorpus(options).status().message()),
              HasSubstr("no text was found in 0 files with a wanted extension"));
  options = Options();
  options.validation_percent = 51;
  EXPECT_THAT(std::string(PrepareCorpus(options).status().message()), HasSubstr("51%"));
  options = Options();
  options.bytes_max = 0;
  EXPECT_FALSE(PrepareCorpus(options).ok());
  options = Options();
  options.out = in() + "/d0/file0.h";
  EXPECT_THAT(std::string(PrepareCorpus(options).status().message()), HasSubstr("not a directory"));
  EXPECT_EQ(before, *ReadFile(out() + "/train.bin"));
}

TEST(Utf8TextTest, AcceptsExactlyWellFormedUtf8WithoutZero) {
  for (const char* good : {"", "plain", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf", "\xee\x80\x80"}) {
    EXPECT_TRUE(IsUtf8Text(good)) << good;
  }
  for (const std::string& bad :
       {std::string("a\0b", 3), std::string("\x80"), std::string("\xc0\x80"),
        std::string("\xc1\xbf"), std::string("\xc3"), std::string("\xe0\x80\x80"),
        std::string("\xed\xa0\x80"), std::string("\xf0\x80\x80\x80"),
        std::string("\xf4\x90\x80\x80"), std::string("\xf5\x80\x80\x80"), std::string("\xe2\x82"),
        std::string("\xe2\x28\xa1"), std::string("\xff")}) {
    EXPECT_FALSE(IsUtf8Text(bad)) << absl::StrCat(bad.size());
  }
}

}  // namespace
}  // namespace dtrain::plan::prepare_corpus_test
