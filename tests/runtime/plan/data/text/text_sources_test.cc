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
