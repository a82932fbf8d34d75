#include "runtime/plan/data/text/text_sources.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/data/text/compressed.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::text_sources_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TextSourcesTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) const {
    return folder_.Write(name, content);
  }
  // All bytes from a place on, and the number of records.
  static std::pair<std::string, int64_t> Rest(const std::vector<TextSource>& sources, size_t source,
                                              int64_t record) {
    ChunkReader reader(sources, source, record);
    std::string all;
    int64_t records = 0;
    int64_t next = record;
    while (true) {
      const absl::StatusOr<std::optional<TextChunk>> chunk = reader.Next();
      EXPECT_TRUE(chunk.ok()) << chunk.status();
      if (!chunk.ok() || !chunk->has_value()) {
        return {all, records};
      }
      next = (*chunk)->source == source ? next : 0;
      source = (*chunk)->source;
      EXPECT_EQ((*chunk)->first_record, next);
      next += (*chunk)->records;
      records += (*chunk)->records;
      all += (*chunk)->bytes;
    }
  }
  TempFolder folder_;
};

std::string Lines(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&lines, "{\"text\": \"", std::string(static_cast<size_t>(i % 97), 'x'), i,
                    "\"}\n");
  }
  return lines;
}

TEST_F(TextSourcesTest, FoldersAreWalkedInOrderAndFilesTakenAsNamed) {
  Write("d/b.txt", "b");
  Write("d/a/z.md", "z");
  Write("d/a/y.jsonl.gz", "y");
  Write("d/long.txt", std::string(100, 'l'));
  std::filesystem::create_symlink(folder_.path() + "/d/b.txt", folder_.path() + "/d/link.txt");
  const std::string named = Write("named.json.zst", "n");
  const absl::StatusOr<FoundSources> found =
      FindSources({named, folder_.path() + "/d", "-"}, {.extensions = {}, .file_bytes_max = 99});
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<std::string> names;
  std::vector<bool> lines;
  for (const TextSource& source : found->sources) {
    names.push_back(source.name);
    lines.push_back(source.has_lines);
  }
  EXPECT_THAT(names, ElementsAre(named, "a/y.jsonl.gz", "a/z.md", "b.txt", "standard input"));
  EXPECT_THAT(lines, ElementsAre(true, true, false, false, false));
  EXPECT_EQ(found->too_long, 1);
  const auto only = FindSources({folder_.path() + "/d"}, {.extensions = {".jsonl"}});
  ASSERT_TRUE(only.ok());
  EXPECT_EQ(only->sources.size(), 1U) << "the ending of a compression is no extension";
  EXPECT_EQ(FindSources({"/nothing"}, {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(FindSources({"-", "-"}, {}).status().message(), HasSubstr("named twice"));
}

// A cache of Hugging Face has links to files that stand elsewhere.
TEST_F(TextSourcesTest, LinksToOtherFilesAreFollowedAndFilesForProgramsLeftOut) {
  namespace fs = std::filesystem;
  const std::string folder = folder_.path() + "/snapshot";
  Write("blobs/1", "{}\n");
  Write("snapshot/data/own.md", "own");
  Write("snapshot/__init__.py", "code");
  for (const char* const name : {".git/config", ".hidden.txt", "_SUCCESS", "_metadata",
                                 "_delta_log/0.json", "data/_common_metadata", ".store/2"}) {
    Write(absl::StrCat("snapshot/", name), "for programs");
  }
  fs::create_symlink("../../blobs/1", folder + "/data/train.jsonl");
  fs::create_symlink("../blobs/1", folder + "/twice.jsonl");
  fs::create_symlink(".store/2", folder + "/kept.txt");
  fs::create_symlink("data/own.md", folder + "/again.md");
  fs::create_symlink("nowhere", folder + "/gone.txt");
  fs::create_directory_symlink("data", folder + "/linked");
  const absl::StatusOr<FoundSources> found = FindSources({folder}, {});
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<std::string> names;
  for (const TextSource& source : found->sources) {
    names.push_back(source.name);
  }
  EXPECT_THAT(names, ElementsAre("__init__.py", "data/own.md", "data/train.jsonl", "kept.txt"));
  EXPECT_TRUE(found->sources[2].has_lines);
  EXPECT_EQ(found->sources[2].bytes, 3);
  EXPECT_EQ(found->unreadable, 1);
  // The file of a link in the same folder is not found by its own name, which has no extension.
  const auto only = FindSources({folder_.path()}, {.extensions = {".jsonl"}});
  ASSERT_TRUE(only.ok() && only->sources.size() == 1) << only.status();
  EXPECT_EQ(only->sources[0].name, "snapshot/data/train.jsonl");
}

TEST_F(TextSourcesTest, SettingsOfProgramsInAFolderAreTexts) {
  const std::string settings = "{\n  \"name\": \"program\"\n}\n";
  const std::string named = Write("d/a.json", settings);
  Write("d/b.json", "[\n{}\n]\n");
  Write("d/c.json", "{\"text\": \"one\"}\n{}\n");
  Write("d/d.json.gz", Gzip(settings));
  Write("d/e.jsonl", settings);
  const auto found = FindSources({folder_.path() + "/d", named}, {});
  ASSERT_TRUE(found.ok());
  ChunkReader reader(found->sources, 0, 0);
  for (const bool has_lines : {false, true, true, false, true, true}) {
    const auto chunk = reader.Next();
    ASSERT_TRUE(chunk.ok() && chunk->has_value()) << chunk.status();
    EXPECT_EQ((*chunk)->has_lines, has_lines) << (*chunk)->source;
    EXPECT_EQ((*chunk)->records == 1, !has_lines) << (*chunk)->source;
  }
  EXPECT_EQ(Rest(found->sources, 4, 1).first, settings.substr(2) + settings);
  EXPECT_EQ(Rest(found->sources, 3, 1).first, settings + settings) << "the text was read before";
}

TEST_F(TextSourcesTest, TheMarkOfUtf8HidesNoSettings) {
  Write("m/a.json", "\xEF\xBB\xBF{\n  \"name\": \"program\"\n}\n");
  Write("m/b.json", "\xEF\xBB\xBF{\"text\": \"one\"}\n");
  const auto found = FindSources({folder_.path() + "/m"}, {});
  ASSERT_TRUE(found.ok());
  ChunkReader reader(found->sources, 0, 0);
  for (const bool has_lines : {false, true}) {
    const auto chunk = reader.Next();
    ASSERT_TRUE(chunk.ok() && chunk->has_value()) << chunk.status();
    EXPECT_EQ((*chunk)->has_lines, has_lines) << (*chunk)->source;
  }
}

TEST_F(TextSourcesTest, AFileOfAFolderThatIsNoTextIsARecordOfItsOwn) {
  Write("d/a.docx", "PK\x03\x04 and what a document holds");
  Write("d/b.npy", "\x93NUMPY\x01");
  Write("d/c.txt", "text");
  const auto found = FindSources({folder_.path() + "/d"}, {});
  ASSERT_TRUE(found.ok());
  ChunkReader reader(found->sources, 0, 0);
  for (const bool is_no_text : {true, true, false}) {
    const auto chunk = reader.Next();
    ASSERT_TRUE(chunk.ok() && chunk->has_value()) << chunk.status();
    EXPECT_EQ((*chunk)->is_no_text, is_no_text);
  }
  EXPECT_EQ(Rest(found->sources, 0, 0), std::pair(std::string("text"), int64_t{3}));
  EXPECT_EQ(Rest(found->sources, 0, 1), std::pair(std::string("text"), int64_t{2}));
  const auto named = FindSources({folder_.path() + "/d/a.docx"}, {});
  ASSERT_TRUE(named.ok());
  EXPECT_THAT(ChunkReader(named->sources, 0, 0).Next().status().message(),
              HasSubstr("a.docx is a zip archive"));
}

TEST_F(TextSourcesTest, ChunksEndWithLinesAndGoOnFromAnyRecord) {
  const std::string lines = Lines(50000);  // Some three mebibytes.
  for (const std::string& last : {std::string(), std::string("{\"text\": \"no line end\"}")}) {
    const std::string whole = lines + last;
    for (const std::string& stored : {whole, Gzip(whole), Zstd(whole)}) {
      const std::string path = Write("a.jsonl", stored);
      const auto found = FindSources({path}, {});
      ASSERT_TRUE(found.ok());
      EXPECT_EQ(Rest(found->sources, 0, 0),
                std::pair(whole, int64_t{last.empty() ? 50000 : 50001}));
      for (const int64_t record : {1, 17, 30000, 49999, 50000}) {
        size_t begin = 0;
        for (int64_t i = 0; i < record; ++i) {
          begin = whole.find('\n', begin) + 1;
        }
        EXPECT_EQ(Rest(found->sources, 0, record).first, whole.substr(begin)) << record;
      }
      EXPECT_EQ(Rest(found->sources, 0, 50001).first, "") << "all was read before";
    }
  }
}

TEST_F(TextSourcesTest, ALineLongerThanAChunkStaysWhole) {
  const std::string text =
      "{\"text\": \"" + std::string(3 * ChunkReader::kChunkBytes, 'a') + "\"}\n";
  const std::string path = Write("a.jsonl", text + "{}\n" + text);
  const auto found = FindSources({path}, {});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(Rest(found->sources, 0, 0), std::pair(text + "{}\n" + text, int64_t{3}));
  EXPECT_EQ(Rest(found->sources, 0, 1).first, "{}\n" + text);
  EXPECT_EQ(Rest(found->sources, 0, 2).first, text);
}

TEST_F(TextSourcesTest, ATextIsOneRecordAndSourcesFollowEachOther) {
  const std::string long_text(2 * ChunkReader::kChunkBytes + 5, 't');
  const std::string text = Write("a.txt", long_text);
  const std::string empty = Write("b.txt", "");
  const std::string lines = Write("c.jsonl", "{}\n{}\n");
  const auto found = FindSources({text, empty, lines}, {});
  ASSERT_TRUE(found.ok());
  ChunkReader reader(found->sources, 0, 0);
  const auto first = reader.Next();
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->bytes, long_text);
  EXPECT_FALSE((*first)->has_lines);
  const auto second = reader.Next();
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_EQ((*second)->source, 2U);
  EXPECT_EQ((*second)->records, 2);
  EXPECT_EQ(reader.bytes_consumed(), static_cast<int64_t>(long_text.size()) + 6);
  EXPECT_FALSE(reader.Next()->has_value());
  EXPECT_EQ(Rest(found->sources, 0, 1), std::pair(std::string("{}\n{}\n"), int64_t{2}));
}

TEST_F(TextSourcesTest, EndlessLinesAndTextsAreRefusedByName) {
  const std::string huge(static_cast<size_t>(kDocumentBytesMax) + (2U << 20), 'x');
  for (const char* const name : {"a.jsonl", "a.txt"}) {
    const auto found = FindSources({Write(name, huge)}, {});
    ASSERT_TRUE(found.ok());
    ChunkReader reader(found->sources, 0, 0);
    EXPECT_THAT(reader.Next().status().message(), HasSubstr("more than 67108864 bytes"));
  }
}

}  // namespace
}  // namespace dtrain::plan::text_sources_test
