#include "runtime/plan/data/token_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/types/span.h"
#include "base/file.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/token_corpus.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::token_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Header(int32_t magic, int32_t version, int32_t tokens, int32_t word3 = 0) {
  std::string header(1024, '\0');
  const int32_t words[] = {magic, version, tokens, word3};
  std::memcpy(header.data(), words, sizeof(words));
  return header;
}

template <typename T>
std::string Tokens(const std::vector<T>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)};
}

std::string U16File(const std::vector<uint16_t>& tokens, int64_t vocabulary = 0) {
  return MakeTokenHeader(static_cast<int64_t>(tokens.size()), vocabulary) + Tokens(tokens);
}

class TokenFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_.path() + "/" + name;
    EXPECT_TRUE(WriteFileAtomic(path, content).ok());
    return path;
  }
  std::string Failure(const std::string& content, TokenFormat format = TokenFormat::kAuto) {
    const absl::Status status = TokenFile::Open(Write("f.bin", content), format).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(folder_.path() + "/f.bin: "));
    return std::string(status.message());
  }
  TempFolder folder_;
};

std::vector<int64_t> All(const TokenFile& file) {
  std::vector<int64_t> tokens(static_cast<size_t>(file.tokens()));
  EXPECT_TRUE(file.Copy(0, absl::MakeSpan(tokens)).ok());
  return tokens;
}

TEST_F(TokenFileTest, ReadsLlmcU16AndU32AndNanoGpt) {
  const std::string u16 =
      Write("a.bin", Header(20240520, 1, 3) + Tokens<uint16_t>({1, 50256, 65535}));
  EXPECT_THAT(All(*TokenFile::Open(u16)), ElementsAre(1, 50256, 65535));
  const std::string u32 =
      Write("b.bin", Header(20240801, 7, 2) + Tokens<uint32_t>({128000, 4294967295u}));
  EXPECT_THAT(All(*TokenFile::Open(u32)), ElementsAre(128000, 4294967295));
  const std::string raw = Write("c.bin", Tokens<uint16_t>({7, 8, 9}));
  EXPECT_THAT(All(*TokenFile::Open(raw, TokenFormat::kNanoGptU16)), ElementsAre(7, 8, 9));
}

TEST_F(TokenFileTest, CopiesAnyPartAndKeepsTheVocabulary) {
  const TokenFile file = *TokenFile::Open(Write("a.bin", U16File({5, 6, 7, 8}, 256)));
  EXPECT_EQ(file.header().vocabulary, 256);
  std::vector<int64_t> part(2);
  EXPECT_TRUE(file.Copy(1, absl::MakeSpan(part)).ok());
  EXPECT_THAT(part, ElementsAre(6, 7));
  EXPECT_TRUE(file.Copy(4, {}).ok());
}

TEST_F(TokenFileTest, ForeignUseOfTheReservedWordIsNoVocabulary) {
  const std::string body = Tokens<uint16_t>({1});
  EXPECT_EQ(TokenFile::Open(Write("a", Header(20240520, 1, 1, -5) + body))->header().vocabulary, 0);
  EXPECT_EQ(
      TokenFile::Open(Write("b", Header(20240520, 1, 1, 1 << 20) + body))->header().vocabulary, 0);
}

TEST_F(TokenFileTest, AHeaderIsMadeUpToWhatItCanSay) {
  const auto header = ParseTokenHeader(MakeTokenHeader(kTokensMax, 65536), 1024 + 2 * kTokensMax,
                                       "f", TokenFormat::kAuto);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tokens, 2147483647);
  EXPECT_EQ(header->vocabulary, 65536);
  EXPECT_EQ(header->bytes_per_token, 2);
  EXPECT_EQ(MakeTokenHeader(0, 0).size(), 1024U);
  for (const auto& [tokens, vocabulary, named] :
       {std::tuple(int64_t{-1}, int64_t{0}, "-1 tokens"),
        std::tuple(kTokensMax + 1, int64_t{0}, "2147483648 tokens"),
        std::tuple(int64_t{1}, int64_t{-1}, "vocabulary -1"),
        std::tuple(int64_t{1}, int64_t{65537}, "vocabulary 65537")}) {
    EXPECT_EXIT(MakeTokenHeader(tokens, vocabulary), ::testing::ExitedWithCode(kExitBug), named);
  }
}

TEST_F(TokenFileTest, MissingFileIsNotFoundAndNamed) {
  const absl::Status status = TokenFile::Open(folder_.path() + "/nothing.bin").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing.bin"));
  EXPECT_THAT(std::string(TokenFile::Open(folder_.path()).status().message()),
              HasSubstr("not a regular file"));
}

TEST_F(TokenFileTest, DamagedFilesNameFileAndOffset) {
  const std::string good = U16File({1, 2, 3});
  EXPECT_THAT(Failure(""), HasSubstr("it is empty"));
  EXPECT_THAT(Failure(good.substr(0, 100)), HasSubstr("ends at byte 100, inside the 1024-byte"));
  EXPECT_THAT(Failure(good.substr(0, 1029)),
              HasSubstr("truncated at byte 1029; its header promises 3 tokens, 1030 bytes"));
  EXPECT_THAT(Failure(good + "x"), HasSubstr("goes on and ends at byte 1031"));
  EXPECT_THAT(Failure(Header(12, 1, 0)), HasSubstr("the magic at byte 0 is 12"));
  EXPECT_THAT(Failure(Header(20240520, 2, 0)), HasSubstr("the version at byte 4 is 2, want 1"));
  EXPECT_THAT(Failure(Header(20240801, 1, 0)), HasSubstr("the version at byte 4 is 1, want 7"));
  EXPECT_THAT(Failure(Header(20240520, 1, -1)), HasSubstr("the token count at byte 8 is -1"));
  EXPECT_THAT(Failure("abc", TokenFormat::kNanoGptU16), HasSubstr("cut at byte 2"));
}

TEST_F(TokenFileTest, WhatIsNoRawU16IsRefusedByItsName) {
  const auto raw = [&](const std::string& content) {
    return Failure(content, TokenFormat::kNanoGptU16);
  };
  EXPECT_THAT(raw(U16File({1, 2, 3})),
              HasSubstr("it has an llm.c header; set data.format to auto"));
  EXPECT_THAT(raw(Header(20240801, 7, 0)), HasSubstr("set data.format to auto"));
  EXPECT_THAT(raw(Header(20240520, 2, 0)), HasSubstr("llm.c")) << "a version that is not known";
  const std::vector<uint32_t> wide = {15496, 11, 995, 0, 50256, 464, 3290, 198, 131071, 128000};
  EXPECT_THAT(raw(Tokens(wide)), HasSubstr("each second u16 is 0 to 3"));
  EXPECT_THAT(raw(Tokens(std::vector<uint64_t>(wide.begin(), wide.end()))),
              HasSubstr("ids of 32 or 64 bits"));
  EXPECT_THAT(raw("\x93NUMPY\x01" + std::string(9, '\0')), HasSubstr("a NumPy file"));
  EXPECT_THAT(raw("PK\x03\x04" + std::string(10, 'x')), HasSubstr("a zip archive"));
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += "All is text.\n";
  }
  EXPECT_THAT(raw(text), HasSubstr("dtrain data prepare makes tokens of text"));
}

TEST_F(TokenFileTest, EveryKnownFormatIsToldApartByItsFirstBytes) {
  const std::string rest(20, '\x7f');
  for (const auto& [magic, what] :
       {std::pair("\x1f\x8b", "compressed by gzip"), std::pair("\x28\xb5\x2f\xfd", "by zstd"),
        std::pair("PAR1", "a Parquet file"), std::pair("ARROW1", "an Arrow file"),
        std::pair("MMIDIDX", "a Megatron index")}) {
    EXPECT_THAT(Failure(magic + rest, TokenFormat::kNanoGptU16), HasSubstr(what));
  }
}

TEST_F(TokenFileTest, TheGuessesOfWideIdsAndTextNeedEnoughOfThem) {
  const auto opens = [&](const std::string& content) {
    return TokenFile::Open(Write("f.bin", content), TokenFormat::kNanoGptU16).ok();
  };
  EXPECT_FALSE(opens(Tokens(std::vector<uint32_t>(8, 15496))));
  EXPECT_TRUE(opens(Tokens(std::vector<uint32_t>(7, 15496)))) << "too few to say";
  EXPECT_FALSE(opens(Tokens(std::vector<uint32_t>(8, 0x3ffff)))) << "the largest such id";
  EXPECT_TRUE(opens(Tokens(std::vector<uint32_t>(8, 0x40000 + 15496))));
  EXPECT_FALSE(opens(std::string(64, 'x')));
  EXPECT_TRUE(opens(std::string(62, 'x')));
  EXPECT_TRUE(opens(std::string(63, 'x') + '\x01'));
}

TEST_F(TokenFileTest, AVocabularyIsAtMostWhatTheTokensCanSay) {
  const auto vocabulary = [&](int32_t magic, int32_t version, int32_t word,
                              const std::string& body) {
    return TokenFile::Open(Write("f.bin", Header(magic, version, 1, word) + body))
        ->header()
        .vocabulary;
  };
  const std::string two = Tokens<uint16_t>({1});
  const std::string four = Tokens<uint32_t>({1});
  EXPECT_EQ(vocabulary(20240520, 1, 1, two), 1);
  EXPECT_EQ(vocabulary(20240520, 1, 65536, two), 65536);
  EXPECT_EQ(vocabulary(20240520, 1, 65537, two), 0);
  EXPECT_EQ(vocabulary(20240801, 7, 128256, four), 128256);
  EXPECT_EQ(vocabulary(20240801, 7, 0, four), 0);
}

TEST_F(TokenFileTest, AutoAdvisesOnlyWhatWouldWork) {
  const std::vector<uint32_t> wide(300, 15496);
  EXPECT_THAT(Failure(Tokens(wide)),
              HasSubstr("write them as u16, or as u32 behind an llm.c header"));
  EXPECT_THAT(Failure(Tokens(std::vector<uint16_t>(600, 15496))),
              HasSubstr("raw u16 tokens need data.format nanogpt-u16"));
  EXPECT_EQ(Failure(U16File({1, 2, 3}).substr(0, 100)).find("nanogpt"), std::string::npos);
}

TEST_F(TokenFileTest, RawTokensThatLookOddAreTokens) {
  const std::vector<std::vector<uint16_t>> odd = {
      std::vector<uint16_t>(512, 0),                           // Padding.
      {0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1},  // A vocabulary of four letters.
      {7, 0, 9, 0, 5, 0},                                      // Too few to say.
      {50256, 0, 11, 0, 50256, 7, 11, 0, 9, 0, 9, 0, 9, 0, 9, 0, 9, 0}};
  for (const std::vector<uint16_t>& tokens : odd) {
    EXPECT_TRUE(TokenFile::Open(Write("f.bin", Tokens(tokens)), TokenFormat::kNanoGptU16).ok());
  }
}

TEST_F(TokenFileTest, EveryCutOfAFileIsFound) {
  const std::string good = U16File({1, 2, 3, 4, 5});
  for (size_t length = 0; length < good.size(); ++length) {
    const auto size = static_cast<int64_t>(length);
    EXPECT_FALSE(
        ParseTokenHeader(absl::string_view(good).substr(0, length), size, "f", TokenFormat::kAuto)
            .ok())
        << length;
  }
}

TEST_F(TokenFileTest, EveryBitFlipOfTheCheckedHeaderIsFound) {
  const std::string good = U16File({1, 2, 3, 4, 5});
  for (size_t bit = 0; bit < 12 * 8; ++bit) {  // Magic, version, count.
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(
        ParseTokenHeader(bad, static_cast<int64_t>(bad.size()), "f", TokenFormat::kAuto).ok())
        << bit;
  }
}

TEST_F(TokenFileTest, IdBeyondTheVocabularyNamesFileOffsetAndId) {
  const std::string path = Write("a.bin", U16File({1, 2, 300, 4}));
  const TokenFile file = *TokenFile::Open(path);
  std::vector<int64_t> tokens(4);
  EXPECT_TRUE(file.Copy(0, absl::MakeSpan(tokens), 301).ok());
  EXPECT_TRUE(file.Copy(0, absl::MakeSpan(tokens).first(2), 256).ok());
  const absl::Status status = file.Copy(1, absl::MakeSpan(tokens).subspan(1), 256);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "token file " + path +
                ": token 2 (byte 1028) is 300, not below the vocabulary of 256; is it of another "
                "tokenizer?");
}

// A long row is read in blocks: each width is cut at other tokens, and the rows begin anywhere.
TEST_F(TokenFileTest, LongRowsAreWholeAndAnyOfTheirIdsIsChecked) {
  constexpr int64_t kTokens = 70000;
  for (const int width : {2, 4}) {
    std::string content = MakeTokenHeader(kTokens, 0, width);
    for (int64_t i = 0; i < kTokens; ++i) {
      const auto id = static_cast<uint32_t>(i % 50000);
      content.append(reinterpret_cast<const char*>(&id), static_cast<size_t>(width));
    }
    const TokenFile file = *TokenFile::Open(Write("long.bin", content));
    for (const int64_t begin : {int64_t{0}, int64_t{1}, int64_t{8207}, int64_t{16417}}) {
      std::vector<int64_t> row(static_cast<size_t>(kTokens - begin));
      ASSERT_TRUE(file.Copy(begin, absl::MakeSpan(row), 50000).ok());
      for (int64_t i = 0; i < kTokens - begin; ++i) {
        ASSERT_EQ(row[static_cast<size_t>(i)], (begin + i) % 50000) << width << " bytes, " << begin;
      }
      EXPECT_THAT(std::string(file.Copy(begin, absl::MakeSpan(row), 49999).message()),
                  HasSubstr("token 49999 (byte " + std::to_string(1024 + 49999 * width) + ")"));
    }
  }
}

// A longer read than the file has left: in the middle of a page too, where a mapping has zeros.
TEST_F(TokenFileTest, AFileThatIsCutWhileItIsOpenIsNamedWithBothLengths) {
  const std::vector<uint16_t> tokens(20000, 7);
  for (const int64_t bytes : {int64_t{0}, int64_t{500}, int64_t{1024 + 4096 + 6}}) {
    const std::string path = Write("cut.bin", U16File(tokens));
    const TokenFile file = *TokenFile::Open(path);
    const TokenCorpus corpus = *TokenCorpus::Open({path}, TokenFormat::kAuto);
    ASSERT_EQ(truncate(path.c_str(), bytes), 0);
    std::vector<int64_t> out(tokens.size());
    const std::vector<absl::Status> ends = {
        file.Copy(0, absl::MakeSpan(out)), file.Copy(19999, absl::MakeSpan(out).first(1)),
        corpus.Read({0, 4000, 0}, 1000, /*vocabulary=*/256, out.data())};
    for (const absl::Status& status : ends) {
      EXPECT_EQ(ExitCodeFor(status), kExitUsage);
      EXPECT_THAT(
          std::string(status.message()),
          HasSubstr("token file " + path + ": it had 41024 bytes when it was opened and has " +
                    std::to_string(bytes) + " while it is read"));
    }
    if (bytes > 1024) {  // The tokens that are left can be read.
      EXPECT_TRUE(file.Copy(0, absl::MakeSpan(out).first(2051)).ok());
      EXPECT_FALSE(file.Copy(0, absl::MakeSpan(out).first(2052)).ok());
    }
  }
}

// The descriptor of an open file: the only one that leads to `path`.
int DescriptorOf(const std::string& path) {
  for (int fd = 0; fd < 1024; ++fd) {
    std::array<char, 4096> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target.data(), target.size() - 1) > 0 && path == target.data()) {
      return fd;
    }
  }
  return -1;
}

TEST_F(TokenFileTest, AReadThatFailsNamesFilePlaceAndReason) {
  const std::string path = Write("bad.bin", U16File({1, 2, 3}));
  const TokenFile file = *TokenFile::Open(path);
  const int folder = open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(dup2(folder, DescriptorOf(path)), 0);  // Reading it fails as failed storage would.
  close(folder);
  int64_t token = 0;
  const absl::Status status = file.Copy(1, absl::MakeSpan(&token, 1));
  EXPECT_EQ(std::string(status.message()),
            "token file " + path + ": cannot read 2 bytes at byte 1026: Is a directory");
}

TEST_F(TokenFileTest, AFifoIsRefusedAndWaitsForNobody) {
  const std::string path = folder_.path() + "/fifo";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(TokenFile::Open(path).status().message()),
              HasSubstr("not a regular file"));
}

// Files stay open: a corpus of more shards than the usual limit raises it.
TEST_F(TokenFileTest, MoreShardsThanTheSoftLimitOfOpenFilesAreOneCorpus) {
  constexpr int kShards = 100;
  for (int i = 0; i < kShards; ++i) {
    Write("shard_" + std::to_string(i) + ".bin", U16File({1, 2, 3}));
  }
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{64, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto corpus = TokenCorpus::Open({folder_.path() + "/shard_*.bin"}, TokenFormat::kAuto);
  EXPECT_TRUE(corpus.ok()) << corpus.status();
  rlimit after{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, 64 + kShards);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(TokenFileTest, FormatNames) {
  EXPECT_EQ(*TokenFormatFromName("auto"), TokenFormat::kAuto);
  EXPECT_EQ(*TokenFormatFromName("llmc"), TokenFormat::kLlmc);
  EXPECT_EQ(*TokenFormatFromName("nanogpt-u16"), TokenFormat::kNanoGptU16);
  EXPECT_FALSE(TokenFormatFromName("npy").ok());
}

TEST_F(TokenFileTest, CorpusTakesPatternsInOrderAndEachFileOnce) {
  const std::string a = Write("x_train_2.bin", U16File({1}));
  const std::string b = Write("x_train_10.bin", U16File({2, 3}));
  const std::string c = Write("a.bin", U16File({4}));
  EXPECT_THAT(*ExpandTokenPaths({c, folder_.path() + "/*_train_*.bin", a}), ElementsAre(c, b, a));
  EXPECT_EQ(ExpandTokenPaths({folder_.path() + "/*.npy"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ExpandTokenPaths({}).status().message()), HasSubstr("set data.train"));
  const TokenCorpus corpus =
      *TokenCorpus::Open({folder_.path() + "/*_train_*.bin"}, TokenFormat::kAuto);
  EXPECT_THAT(corpus.tokens_per_file(), ElementsAre(2, 1));
  EXPECT_EQ(corpus.tokens(), 3);
}

TEST_F(TokenFileTest, ANameThatLooksLikeAPatternIsTakenByItsFile) {
  const std::string literal = Write("train[1].bin", U16File({1}));
  const std::string matched = Write("train1.bin", U16File({2}));
  const std::string star = Write("a*.bin", U16File({3}));
  Write("ab.bin", U16File({4}));
  EXPECT_THAT(*ExpandTokenPaths({literal}), ElementsAre(literal));
  EXPECT_THAT(*ExpandTokenPaths({star}), ElementsAre(star));
  EXPECT_THAT(*ExpandTokenPaths({folder_.path() + "/train[12].bin"}), ElementsAre(matched));
}

TEST_F(TokenFileTest, CorpusReadsSamplesAndChecksTheirIds) {
  const std::string path = Write("a.bin", U16File({0, 1, 2, 3, 4, 500, 6}));
  const TokenCorpus corpus = *TokenCorpus::Open({path}, TokenFormat::kAuto);
  std::vector<int64_t> sample(4);
  ASSERT_TRUE(corpus.Read({0, 1, 0}, 3, 256, sample.data()).ok());
  EXPECT_THAT(sample, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(std::string(corpus.Read({0, 3, 0}, 3, 256, sample.data()).message()),
              HasSubstr("token 5 (byte 1034) is 500"));
}

TEST_F(TokenFileTest, CorpusRefusesTwoVocabularies) {
  const std::string a = Write("a.bin", U16File({1}, 256));
  const std::string b = Write("b.bin", U16File({1}));
  const std::string c = Write("c.bin", U16File({1}, 50257));
  EXPECT_EQ(TokenCorpus::Open({a, b}, TokenFormat::kAuto)->vocabulary(), 256);
  EXPECT_THAT(std::string(TokenCorpus::Open({a, b, c}, TokenFormat::kAuto).status().message()),
              HasSubstr("has the vocabulary 50257, " + a + " has 256"));
}

}  // namespace
}  // namespace dtrain::plan::token_file_test
