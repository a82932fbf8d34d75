#include "runtime/plan/data/text/prepare_text.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/megatron_index.h"
#include "runtime/plan/data/text/corpus_files.h"
#include "runtime/plan/data/text/prepare_output.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_mask.h"
#include "tests/runtime/plan/data/parquet/parquet_bytes.h"
#include "tests/runtime/plan/data/text/byte_chat_encoder.h"
#include "tests/runtime/plan/data/text/compressed.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::prepare_text_test {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class PrepareTextTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) const {
    return folder_.Write(name, content);
  }
  std::string Out(const std::string& name = "out") const { return folder_.path() + "/" + name; }
  PrepareTextOptions Options(const std::vector<std::string>& sources) const {
    PrepareTextOptions options;
    options.sources = sources;
    options.out = Out();
    options.threads = 2;
    return options;
  }
  TextReport Prepare(const PrepareTextOptions& options) {
    absl::StatusOr<TextReport> report = PrepareText(options, encoder_);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : TextReport{};
  }
  // Runs it in a process that is killed at its second report of progress.
  void BeginAndKill(PrepareTextOptions options) {
    options.commit_bytes = 1;
    const pid_t child = fork();
    if (child == 0) {
      int reports = 0;
      options.progress = [&](const TextProgress& /*now*/) {
        if (++reports == 2) {
          raise(SIGKILL);
        }
      };
      PrepareText(options, encoder_).status().IgnoreError();
      _exit(1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  std::string Why(const PrepareTextOptions& options) {
    return std::string(PrepareText(options, encoder_).status().message());
  }
  // The documents of a file, without their end tokens.
  std::vector<std::string> Documents(const std::string& path) {
    const absl::StatusOr<TokenFile> file = TokenFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<int64_t> tokens(static_cast<size_t>(file->tokens()));
    EXPECT_TRUE(file->Copy(0, absl::MakeSpan(tokens)).ok());
    const std::string text = encoder_.Decode(std::vector<uint32_t>(tokens.begin(), tokens.end()));
    std::vector<std::string> documents = absl::StrSplit(text, "<end>");
    EXPECT_EQ(documents.back(), "") << "a document without an end";
    documents.pop_back();
    return documents;
  }
  std::vector<std::string> All(const std::string& out) {
    std::vector<std::string> all = Documents(out + "/train.bin");
    for (const std::string& document : Documents(out + "/val.bin")) {
      all.push_back(document);
    }
    return all;
  }
  static std::string Line(const std::string& text) {
    return DumpJson(Json{{"id", 1}, {"text", text}}) + "\n";
  }
  static std::string Lines(int count, const std::string& what = "document") {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      lines +=
          Line(absl::StrCat(what, " number ", i, std::string(static_cast<size_t>(i % 50), '.')));
    }
    return lines;
  }
  const ByteChatEncoder encoder_;
  TempFolder folder_;
};

TEST_F(PrepareTextTest, EverySourceGivesItsDocumentsOnceAndInOrder) {
  const std::vector<std::string> sources = {
      Write("a.jsonl", Lines(300, "plain") + "\n" + Line("plain number 7.......")),
      Write("b.jsonl.gz", Gzip(Lines(200, "gzip"))), Write("c.jsonl.zst", Zstd(Lines(200, "zstd"))),
      Write("d.txt", "one text\nof two lines"), Write("folder/x.md", "in a folder")};
  PrepareTextOptions options = Options({sources.begin(), sources.end() - 1});
  options.sources.push_back(folder_.path() + "/folder");
  const TextReport report = Prepare(options);
  EXPECT_EQ(report.train_documents + report.validation_documents, 702);
  EXPECT_EQ(report.counts.equal, 1);
  EXPECT_GT(report.validation_documents, 20);  // 7 % are 49.
  EXPECT_LT(report.validation_documents, 90);
  const std::vector<std::string> train = Documents(Out() + "/train.bin");
  EXPECT_EQ(static_cast<int64_t>(train.size()), report.train_documents);
  std::set<std::string> distinct;
  for (const std::string& document : All(Out())) {
    EXPECT_TRUE(distinct.insert(document).second) << document;
  }
  EXPECT_EQ(distinct.size(), 702U);
  EXPECT_EQ(distinct.count("one text\nof two lines"), 1U);
  // The splits keep the order of the sources.
  const auto place = [&](const std::string& begin) {
    return std::find_if(
               train.begin(), train.end(),
               [&](const std::string& text) { return text.compare(0, begin.size(), begin) == 0; }) -
           train.begin();
  };
  EXPECT_LT(place("plain"), place("gzip"));
  EXPECT_LT(place("gzip"), place("zstd"));
  EXPECT_FALSE(std::filesystem::exists(Out() + "/.prepare"));
  const Json manifest = *ParseJson(*ReadFile(Out() + "/corpus.json"), "corpus.json");
  EXPECT_EQ(manifest["vocabulary"], 263);
  EXPECT_EQ(manifest["document_token"], 262);
  EXPECT_EQ(manifest["train"]["documents"], report.train_documents);
  EXPECT_EQ(TokenFile::Open(Out() + "/train.bin")->header().vocabulary, 263);
}

TEST_F(PrepareTextTest, ThreadsAndResumesChangeNoByte) {
  const std::string path = Write("a.jsonl.gz", Gzip(Lines(60000)));  // Some four mebibytes.
  PrepareTextOptions options = Options({path});
  options.threads = 1;
  Prepare(options);
  const std::string train = *ReadFile(Out() + "/train.bin");
  const std::string validation = *ReadFile(Out() + "/val.bin");
  options.threads = 4;
  options.out = Out("other");
  Prepare(options);
  EXPECT_EQ(*ReadFile(Out("other") + "/train.bin"), train);
  // A process that is killed at its second report of progress leaves no file, and the next run goes
  // on behind what it has committed.
  options.out = Out("killed");
  BeginAndKill(options);
  EXPECT_FALSE(FileExists(Out("killed") + "/train.bin"));
  int64_t first = -1;
  bool resumed = false;
  options.progress = [&](const TextProgress& now) {
    first = first < 0 ? now.documents : first;
    resumed = resumed || now.resumed;
  };
  Prepare(options);
  EXPECT_TRUE(resumed);
  EXPECT_GT(first, 20000);
  EXPECT_EQ(*ReadFile(Out("killed") + "/train.bin"), train);
  EXPECT_EQ(*ReadFile(Out("killed") + "/val.bin"), validation);
}

TEST_F(PrepareTextTest, BadRecordsAreNamedAndLeftOutUpToANumber) {
  const std::string path =
      Write("a.jsonl", Line("good") + "no json\n" + Line("better") + "{\"txt\": 1}\n" +
                           "{\"text\": \"  \"}\n" + Line("best") + Line("<refuse>"));
  PrepareTextOptions options = Options({path});
  EXPECT_THAT(Why(options), HasSubstr("a.jsonl:2: it is no JSON at byte"));
  EXPECT_THAT(Why(options), HasSubstr("--skip-bad N leaves out"));
  EXPECT_FALSE(FileExists(Out() + "/train.bin"));
  options.skip_bad = 2;
  EXPECT_THAT(Why(options), HasSubstr("a.jsonl:7: this text has no tokens; --skip-bad 2 have"));
  options.skip_bad = 3;
  const TextReport report = Prepare(options);
  EXPECT_EQ(report.counts.bad, 3);
  EXPECT_EQ(report.counts.empty, 1);
  EXPECT_THAT(report.first_bad, HasSubstr("a.jsonl:2: "));
  EXPECT_THAT(All(Out()), UnorderedElementsAre("good", "better", "best"));
  EXPECT_THAT(TextTable(report, encoder_), HasSubstr("3 bad, 1 empty"));
}

TEST_F(PrepareTextTest, BinaryFilesAreRefusedWhereTheyAreNamed) {
  const std::string binary = Write("folder/a.dat", std::string("ab\0c", 4));
  Write("folder/b.txt", "text one");
  Write("folder/c.txt", "text two");
  Write("folder/d.txt", "\xff\xfe");
  EXPECT_THAT(Why(Options({binary})), HasSubstr("a.dat: it is no text: byte 2 is 0"));
  const TextReport report = Prepare(Options({folder_.path() + "/folder"}));
  EXPECT_EQ(report.counts.not_text, 2);
  EXPECT_EQ(report.train_documents + report.validation_documents, 2);
}

TEST_F(PrepareTextTest, ArchivesAmongTheTextsOfAFolderAreLeftOutAndCounted) {
  const std::string archive = Write("texts/a.zip", "PK\x03\x04 of files");
  Write("texts/b.txt", "text one");
  Write("texts/c.txt", "text two");
  const TextReport report = Prepare(Options({folder_.path() + "/texts"}));
  EXPECT_EQ(report.counts.not_text, 1);
  EXPECT_EQ(report.counts.bad, 0);
  EXPECT_THAT(All(Out()), UnorderedElementsAre("text one", "text two"));
  EXPECT_THAT(Why(Options({archive})), HasSubstr("a.zip is a zip archive"));
}

TEST_F(PrepareTextTest, AZeroByteIsNoTextWhereBytesAreTokens) {
  const PrepareTextOptions options =
      Options({Write("z.jsonl", Line("good") + "{\"text\": \"a\\u0000b\"}\n")});
  EXPECT_THAT(PrepareText(options, *TextEncoder::OfBytes()).status().message(),
              HasSubstr("z.jsonl:2: byte 1 of the text is 0, which ends documents"));
}

TEST_F(PrepareTextTest, AFewDocumentsFillBothSplits) {
  Prepare(Options({Write("two.jsonl", Line("first") + Line("second"))}));
  EXPECT_THAT(Documents(Out() + "/train.bin"), ::testing::SizeIs(1));
  EXPECT_THAT(Documents(Out() + "/val.bin"), ::testing::SizeIs(1));
  // The last tenth of a single text validates.
  Prepare(Options({Write("one.txt", std::string(100, 'a'))}));
  EXPECT_EQ(TokenFile::Open(Out() + "/train.bin")->tokens(), 90);
  EXPECT_EQ(TokenFile::Open(Out() + "/val.bin")->tokens(), 11);
  EXPECT_THAT(Why(Options({Write("none.jsonl", "\n\n")})), HasSubstr("no text was found"));
  EXPECT_THAT(Why(Options({})), HasSubstr("no file was found"));
}

TEST_F(PrepareTextTest, ALimitStopsAndShardsDivide) {
  PrepareTextOptions options = Options({Write("a.jsonl", Lines(2000))});
  options.bytes_max = 20000;
  const TextReport limited = Prepare(options);
  EXPECT_LE(limited.counts.text_bytes, 20000);
  EXPECT_GT(limited.counts.text_bytes, 19000);
  const std::string whole = *ReadFile(Out() + "/train.bin");
  options.shard_tokens = 4096;
  const TextReport report = Prepare(options);
  EXPECT_GT(report.train.files.size(), 3U);
  EXPECT_FALSE(FileExists(Out() + "/train.bin")) << "left by the earlier preparation";
  std::string joined;
  for (size_t i = 0; i < report.train.files.size(); ++i) {
    joined += ReadFile(absl::StrFormat("%s/train-%05d.bin", Out(), i))->substr(kTokenHeaderBytes);
  }
  EXPECT_EQ(joined, whole.substr(kTokenHeaderBytes));
}

TEST_F(PrepareTextTest, BeforeFilesAppearNothingOfAnEarlierPreparationIsThere) {
  for (const char* const name :
       {"train-00000.bin", "val.bin", "val.bin.mask", "corpus.json", "x"}) {
    Write(std::string("out/") + name, "earlier");
  }
  ASSERT_TRUE(PublishFiles({}, {"train", "val"}, Out()).ok());
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(Out())) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, ::testing::ElementsAre("x"));
}

constexpr char kCutGzip[] = "\x1f\x8b\x08";

TEST_F(PrepareTextTest, WhatStandsBehindTheLimitIsNotReadWithAnyNumberOfThreads) {
  const std::string first = Write("a.jsonl", Lines(2000));
  PrepareTextOptions options =
      Options({first, Write("b.jsonl", "no json\n"), Write("c.jsonl.gz", kCutGzip)});
  options.bytes_max = 20000;
  std::set<std::string> outputs;
  for (const int threads : {1, 8}) {
    options.threads = threads;
    const TextReport report = Prepare(options);
    EXPECT_EQ(report.counts.bad, 0);
    outputs.insert(*ReadFile(Out() + "/train.bin"));
  }
  EXPECT_THAT(outputs, ::testing::SizeIs(1));
}

TEST_F(PrepareTextTest, AFileThatCannotBeReadIsLeftOutUpToANumber) {
  PrepareTextOptions options =
      Options({Write("a.jsonl", Line("one") + Line("two")), Write("b.jsonl.gz", kCutGzip),
               Write("c.jsonl", Line("three"))});
  EXPECT_THAT(Why(options), HasSubstr("b.jsonl.gz"));
  EXPECT_THAT(Why(options), HasSubstr("--skip-bad N leaves out up to N such records"));
  options.skip_bad = 1;
  const TextReport report = Prepare(options);
  EXPECT_EQ(report.counts.bad, 1);
  EXPECT_THAT(report.first_bad, HasSubstr("b.jsonl.gz"));
  EXPECT_THAT(All(Out()), UnorderedElementsAre("one", "two", "three"));
}

TEST_F(PrepareTextTest, TheOutputInASourceFolderIsNoSource) {
  Write("texts/a.txt", "text one");
  Write("texts/b.txt", "text two");
  PrepareTextOptions options = Options({folder_.path() + "/texts"});
  options.out = folder_.path() + "/texts/out";
  Prepare(options);
  const TextReport again = Prepare(options);
  EXPECT_EQ(again.counts.not_text, 0);
  EXPECT_THAT(All(options.out), UnorderedElementsAre("text one", "text two"));
  options.out = folder_.path() + "/texts";
  EXPECT_THAT(Why(options), HasSubstr("is a source too"));
}

TEST_F(PrepareTextTest, MegatronsIndexCountsEachDocument) {
  PrepareTextOptions options = Options({Write("a.jsonl", Lines(500))});
  Prepare(options);
  const std::string llmc = ReadFile(Out() + "/train.bin")->substr(kTokenHeaderBytes);
  options.format = CorpusFormat::kMegatron;
  const TextReport report = Prepare(options);
  EXPECT_EQ(*ReadFile(Out() + "/train.bin"), llmc);
  const absl::StatusOr<TokenFile> file = TokenFile::Open(Out() + "/train.idx");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tokens(), report.train.tokens);
  const std::string index = *ReadFile(Out() + "/train.idx");
  const auto header =
      ParseMegatronHeader(index.substr(0, 34), static_cast<int64_t>(index.size()), "");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->sequences, report.train_documents);
}

std::string Chat(const std::string& question, const std::string& answer) {
  return DumpJson(Json{{"prompt", question}, {"completion", answer}}) + "\n";
}

// The samples of a packed file: texts in which what is trained on stands in brackets.
std::vector<std::string> Samples(const std::string& path, int64_t row_length) {
  const ByteChatEncoder encoder;
  const TokenFile file = *TokenFile::Open(path);
  const auto mask = MaskFile::OpenFor(path, file.tokens());
  EXPECT_TRUE(mask.ok() && mask->has_value()) << mask.status();
  std::vector<int64_t> tokens(static_cast<size_t>(file.tokens()));
  std::vector<uint8_t> bits(tokens.size());
  EXPECT_TRUE(file.Copy(0, absl::MakeSpan(tokens)).ok());
  EXPECT_TRUE((*mask)->Copy(0, absl::MakeSpan(bits)).ok());
  EXPECT_EQ(tokens.size() % static_cast<size_t>(row_length), 1U);
  std::vector<std::string> samples;
  bool inside = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool begins_row = i % static_cast<size_t>(row_length) == 0;
    EXPECT_TRUE(!begins_row || (bits[i] & kMaskStart) != 0) << "a sample crosses a row";
    if ((bits[i] & kMaskStart) != 0) {
      if (std::exchange(inside, false)) {
        samples.back() += "]";
      }
      samples.emplace_back();
    }
    const bool trained = (bits[i] & kMaskTrained) != 0;
    samples.back() += trained && !inside ? "[" : !trained && inside ? "]" : "";
    inside = trained;
    const auto id = static_cast<uint32_t>(tokens[i]);
    samples.back() += encoder.Decode({&id, 1});
  }
  return samples;
}

TEST_F(PrepareTextTest, SamplesArePackedWholeAndPaddingIsNeverTrainedOn) {
  std::string lines;
  for (int i = 0; i < 60; ++i) {
    lines += Chat(absl::StrCat("q", i, std::string(static_cast<size_t>(i % 11), '?')),
                  absl::StrCat("a", i));
  }
  PrepareTextOptions options = Options({Write("c.jsonl", lines)});
  options.rules.chat = ChatTemplate::kPlain;
  options.rules.row_length = 64;
  const TextReport report = Prepare(options);
  std::set<std::string> found;
  int64_t padding = 0;
  for (const char* const name : {"/train.bin", "/val.bin"}) {
    for (const std::string& sample : Samples(Out() + name, 64)) {
      if (sample.find('[') == std::string::npos) {  // Padding consists of end tokens.
        for (size_t at = 0; at < sample.size(); at += 5, ++padding) {
          ASSERT_EQ(sample.substr(at, 5), "<end>");
        }
        continue;
      }
      EXPECT_TRUE(found.insert(sample).second) << sample;
    }
  }
  EXPECT_EQ(found.size(), 60U);
  EXPECT_EQ(found.count("q12?[a12<end>]"), 1U);
  EXPECT_EQ(padding, report.train.padding + report.validation.padding);
  const MaskHeader header =
      (*MaskFile::OpenFor(Out() + "/train.bin", TokenFile::Open(Out() + "/train.bin")->tokens()))
          ->header();
  EXPECT_EQ(header.row_length, 64);
  EXPECT_EQ(header.trained, report.train.trained);
}

TEST_F(PrepareTextTest, LongSamplesAreCutDroppedOrRefused) {
  const std::string path =
      Write("c.jsonl", Chat("short", "yes") + Chat("short too", "no") +
                           Chat("q", std::string(100, 'a')) + Chat(std::string(100, 'q'), "lost"));
  PrepareTextOptions options = Options({path});
  options.rules.chat = ChatTemplate::kPlain;
  options.rules.row_length = 32;
  const TextReport cut = Prepare(options);
  EXPECT_EQ(cut.counts.cut, 2);
  EXPECT_EQ(cut.counts.no_completion, 1) << "a cut left nothing to train on";
  EXPECT_EQ(cut.train_documents + cut.validation_documents, 3);
  options.rules.long_samples = LongSamples::kDrop;
  const TextReport dropped = Prepare(options);
  EXPECT_EQ(dropped.counts.dropped_long, 2);
  EXPECT_EQ(dropped.train_documents + dropped.validation_documents, 2);
  options.rules.long_samples = LongSamples::kRefuse;
  EXPECT_THAT(Why(options), HasSubstr("c.jsonl:3: its sample has 102 tokens, more than the 32 of"));
}

// Texts of 60 row groups, as Parquet and as JSONL.
std::pair<std::string, std::string> BothForms() {
  std::vector<std::vector<std::string>> groups;
  std::string lines;
  for (int g = 0; g < 60; ++g) {
    groups.emplace_back();
    for (int i = 0; i < 40; ++i) {
      groups.back().push_back(absl::StrCat(g, " ", i % 37, std::string(2000, 'x')));
      lines += DumpJson(Json{{"text", groups.back().back()}}) + "\n";
    }
  }
  return {parquet::TextParquet(groups), lines};
}

TEST_F(PrepareTextTest, ParquetGivesTheFilesThatJsonlGives) {
  const auto [table, lines] = BothForms();
  const TextReport report = Prepare(Options({Write("a.parquet", table)}));
  PrepareTextOptions options = Options({Write("a.jsonl", lines)});
  options.out = Out("lines");
  EXPECT_EQ(Prepare(options).counts, report.counts);
  EXPECT_EQ(report.counts.equal, 60 * 3);
  for (const char* const name : {"/train.bin", "/val.bin"}) {
    EXPECT_EQ(*ReadFile(Out() + name), *ReadFile(Out("lines") + name));
  }
  // An interrupted run goes on behind the row groups that it has done.
  options = Options({folder_.path() + "/a.parquet"});
  options.out = Out("resumed");
  BeginAndKill(options);
  bool resumed = false;
  options.progress = [&resumed](const TextProgress& now) { resumed = now.resumed; };
  EXPECT_EQ(Prepare(options).counts, report.counts);
  EXPECT_TRUE(resumed);
  EXPECT_EQ(*ReadFile(Out("resumed") + "/train.bin"), *ReadFile(Out() + "/train.bin"));
}

TEST_F(PrepareTextTest, BadRowsOfParquetAreNamedAndLeftOut) {
  PrepareTextOptions options =
      Options({Write("a.parquet", parquet::TextParquet({{"one", "two"}, {"", "four"}}))});
  EXPECT_THAT(
      Why(options),
      HasSubstr("a.parquet, row 3: it has no member \"text\" (it has: none): in a table, the "
                "value of this row is null"));
  options.skip_bad = 1;
  const TextReport report = Prepare(options);
  EXPECT_EQ(report.counts.bad, 1);
  EXPECT_EQ(report.train_documents + report.validation_documents, 3);
  options = Options({Write("b.parquet", parquet::TextParquet({{"one", "\xff"}}))});
  EXPECT_THAT(Why(options), HasSubstr("b.parquet, row 2: a text in it is not UTF-8"));
}

TEST_F(PrepareTextTest, EmptyCompletionsAreCounted) {
  PrepareTextOptions options =
      Options({Write("c.jsonl", Chat("a", "b") + Chat("c", "") + Chat("d", " ") + Chat("e", "f"))});
  options.rules.chat = ChatTemplate::kChatMl;
  options.rules.row_length = 64;
  EXPECT_EQ(Prepare(options).counts.no_completion, 2);
  options.format = CorpusFormat::kMegatron;
  EXPECT_THAT(Why(options), HasSubstr("no place for masks"));
  options.format = CorpusFormat::kLlmc;
  options.sources = {Write("t.txt", "text")};
  EXPECT_THAT(Why(options), HasSubstr("instruction data are JSONL"));
  options.sources = {Write("one.jsonl", Chat("a", "b"))};
  EXPECT_THAT(Why(options), HasSubstr("at least two are needed"));
}

TEST_F(PrepareTextTest, OptionsOutOfRangeAreRefusedByName) {
  PrepareTextOptions options = Options({Write("a.jsonl", Lines(3))});
  options.validation_percent = 51;
  EXPECT_THAT(Why(options), HasSubstr("--validation-percent is 51; it must be from 1 to 50"));
  options = Options({"/nothing"});
  EXPECT_EQ(PrepareText(options, encoder_).status().code(), absl::StatusCode::kNotFound);
  options = Options({Write("p.jsonl", "PAR1 is no text")});
  EXPECT_THAT(Why(options), HasSubstr("Parquet file"));
  options = Options({Write("p.parquet", Lines(3))});
  EXPECT_THAT(Why(options), HasSubstr("p.parquet is no Parquet file, as its name says"));
}

}  // namespace
}  // namespace dtrain::plan::prepare_text_test
