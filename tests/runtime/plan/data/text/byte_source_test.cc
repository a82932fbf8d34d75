#include "runtime/plan/data/text/byte_source.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/data/parquet/parquet_bytes.h"
#include "tests/runtime/plan/data/text/compressed.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::byte_source_test {
namespace {

using ::testing::HasSubstr;

class ByteSourceTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& content) {
    const std::string path = folder_.path() + "/file";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // The whole of a file, by reads of `block` bytes.
  absl::StatusOr<std::string> Whole(const std::string& content, size_t block) {
    absl::StatusOr<std::unique_ptr<ByteSource>> source = ByteSource::Open(Write(content));
    if (!source.ok()) {
      return source.status();
    }
    std::string all;
    std::string into(block, '\0');
    while (true) {
      const absl::StatusOr<size_t> n = (*source)->Read(absl::MakeSpan(into));
      if (!n.ok()) {
        return n.status();
      }
      all.append(into, 0, *n);
      if (*n < block) {
        EXPECT_EQ((*source)->bytes_consumed(), static_cast<int64_t>(content.size()));
        return all;
      }
    }
  }
  TempFolder folder_;
};

std::string Text() {
  std::string text;
  for (int i = 0; i < 60000; ++i) {
    text += "line " + std::to_string(i * 7919) + "\n";
  }
  return text;
}

TEST_F(ByteSourceTest, EveryFormGivesTheSameBytesInAnyReads) {
  const std::string text = Text();
  const size_t half = text.size() / 2;
  for (const size_t block : {1000UL, 262144UL, 1UL << 20, 1UL << 22}) {
    EXPECT_EQ(*Whole(text, block), text);
    EXPECT_EQ(*Whole(Gzip(text), block), text);
    EXPECT_EQ(*Whole(Zstd(text), block), text);
    EXPECT_EQ(*Whole(Gzip(text.substr(0, half)) + Gzip(text.substr(half)), block), text);
    EXPECT_EQ(*Whole(Zstd(text.substr(0, half)) + Zstd(text.substr(half)), block), text);
  }
  for (const std::string& small : {std::string(), std::string("a"), std::string("abcdefghij")}) {
    EXPECT_EQ(*Whole(small, 64), small);
    EXPECT_EQ(*Whole(Gzip(small), 64), small);
    EXPECT_EQ(*Whole(Zstd(small), 64), small);
  }
}

TEST_F(ByteSourceTest, RowsOfParquetAreLines) {
  const std::string path = Write(parquet::TextParquet({{"one", "two"}, {"", "four"}}));
  const std::string lines = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n{}\n{\"text\":\"four\"}\n";
  for (const size_t block : {1UL, 7UL, 64UL}) {
    const auto source = ByteSource::Open(path, {{{"text", {}}}, ""});
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE((*source)->has_rows());
    std::string all;
    std::string into(block, '\0');
    for (size_t n = block; n == block;) {
      n = *(*source)->Read(absl::MakeSpan(into));
      all.append(into, 0, n);
    }
    EXPECT_EQ(all, lines);
    EXPECT_EQ((*source)->bytes_consumed(), static_cast<int64_t>(std::filesystem::file_size(path)));
  }
  EXPECT_THAT(ByteSource::Open(path, {{{"body", {}}}, ""}).status().message(),
              HasSubstr("it has no column \"body\" (it has: text)"));
}

TEST_F(ByteSourceTest, CutAndDamagedDataAreNamed) {
  const std::string text = Text();
  for (const std::string& whole : {Gzip(text), Zstd(text)}) {
    for (const size_t length : {whole.size() - 1, whole.size() / 2, size_t{12}}) {
      const absl::Status status = Whole(whole.substr(0, length), 1 << 16).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("/file: its "));
      EXPECT_THAT(status.message(), HasSubstr("data are damaged or cut"));
    }
    std::string flipped = whole;
    flipped[whole.size() / 2] = static_cast<char>(flipped[whole.size() / 2] ^ 0x40);
    EXPECT_FALSE(Whole(flipped, 1 << 16).ok());
  }
}

TEST_F(ByteSourceTest, KnownKindsThatAreNotReadAreNamed) {
  EXPECT_THAT(Whole("PAR1....", 10).status().message(), HasSubstr("too few for a footer"));
  EXPECT_THAT(Whole("PARE....", 10).status().message(), HasSubstr("too few for a footer"));
  EXPECT_THAT(Whole("ARROW1..", 10).status().message(),
              HasSubstr("an Arrow file; write its text as Parquet or JSONL"));
  EXPECT_THAT(Whole("BZh91AY&", 10).status().message(), HasSubstr("bzip2"));
  EXPECT_THAT(ByteSource::Open(folder_.path()).status().message(), HasSubstr("is a folder"));
  EXPECT_EQ(ByteSource::Open("/nothing").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace dtrain::plan::byte_source_test
