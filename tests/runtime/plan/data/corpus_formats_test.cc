// Token files with Megatron's index, with masks and with wide tokens, and corpora of them.
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/corpus_identity.h"
#include "runtime/plan/data/documents.h"
#include "runtime/plan/data/megatron_index.h"
#include "runtime/plan/data/token_corpus.h"
#include "runtime/plan/data/token_mask.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::corpus_formats_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), sizeof(T) * values.size()};
}

class CorpusFormatsTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // An index as Megatron-LM's IndexedDataset writes it, of sequences that stand in one row.
  static std::string Index(uint8_t type, int width, const std::vector<int32_t>& lengths) {
    std::string bytes("MMIDIDX\0\0", 9);
    const uint64_t version = 1;
    const uint64_t counts[] = {lengths.size(), lengths.size() + 1};
    bytes.append(reinterpret_cast<const char*>(&version), 8);
    bytes.append(1, static_cast<char>(type));
    bytes.append(reinterpret_cast<const char*>(counts), 16);
    std::vector<int64_t> pointers;
    std::vector<int64_t> documents = {0};
    int64_t offset = 0;
    for (const int32_t length : lengths) {
      pointers.push_back(offset);
      offset += int64_t{length} * width;
      documents.push_back(static_cast<int64_t>(documents.size()));
    }
    return bytes + Bytes(lengths) + Bytes(pointers) + Bytes(documents);
  }
  static std::vector<int64_t> Tokens(const TokenFile& file) {
    std::vector<int64_t> tokens(static_cast<size_t>(file.tokens()));
    EXPECT_TRUE(file.Copy(0, absl::MakeSpan(tokens)).ok());
    return tokens;
  }
  TempFolder folder_;
};

TEST_F(CorpusFormatsTest, MegatronsFilesAreReadByEitherNameInEveryWholeType) {
  const struct {
    uint8_t type;
    int width;
    std::string data;
  } cases[] = {{1, 1, Bytes<uint8_t>({7, 8, 9, 255})},
               {8, 2, Bytes<uint16_t>({7, 8, 9, 65535})},
               {4, 4, Bytes<int32_t>({7, 8, 9, 150000})},
               {5, 8, Bytes<int64_t>({7, 8, 9, 150000})}};
  for (const auto& c : cases) {
    const std::string data = Write("corpus.bin", c.data);
    const std::string index = Write("corpus.idx", Index(c.type, c.width, {3, 1}));
    for (const std::string& path : {data, index}) {
      for (const TokenFormat format : {TokenFormat::kAuto, TokenFormat::kMegatron}) {
        const absl::StatusOr<TokenFile> file = TokenFile::Open(path, format);
        ASSERT_TRUE(file.ok()) << file.status();
        EXPECT_EQ(file->path(), data);
        EXPECT_EQ(file->header().bytes_per_token, c.width);
        const std::vector<int64_t> tokens = Tokens(*file);
        EXPECT_EQ(tokens[0], 7);
        EXPECT_EQ(tokens[3], c.width == 1 ? 255 : c.width == 2 ? 65535 : 150000);
      }
    }
  }
  // A pattern that names both files of a pair reads the tokens once.
  const absl::StatusOr<TokenCorpus> corpus =
      TokenCorpus::Open(std::vector<std::string>{folder_.path() + "/corpus.*"}, TokenFormat::kAuto);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->tokens(), 4);
}

TEST_F(CorpusFormatsTest, DamagedIndicesAreRefusedByName) {
  const std::string good = Index(8, 2, {3, 1});
  const auto why = [&](const std::string& index, const std::string& data) {
    const std::string path = Write("bad.bin", data);
    Write("bad.idx", index);
    return std::string(TokenFile::Open(path, TokenFormat::kMegatron).status().message());
  };
  const std::string data = Bytes<uint16_t>({1, 2, 3, 4});
  EXPECT_EQ(why(good, data), "");
  EXPECT_THAT(why(good, data + "xx"), HasSubstr("has 10 bytes; copy both files again"));
  EXPECT_THAT(why(good.substr(0, 20), data), HasSubstr("ends at byte 20, inside the 34-byte"));
  EXPECT_THAT(why(good + "x", data), HasSubstr("do not fit 2 sequences and 3 entries"));
  EXPECT_THAT(why("nothing", data), HasSubstr("does not begin with MMIDIDX"));
  EXPECT_THAT(why(Index(6, 8, {1}), Bytes<double>({1})), HasSubstr("at byte 17 is 6"));
  std::string version = good;
  version[9] = 2;
  EXPECT_THAT(why(version, data), HasSubstr("version at byte 9 is 2"));
  const std::string alone = Write("alone.tokens", data);
  EXPECT_THAT(TokenFile::Open(alone, TokenFormat::kMegatron).status().message(),
              HasSubstr("PREFIX.bin and PREFIX.idx"));
  const std::string no_index = Write("lost.bin", data);
  EXPECT_THAT(TokenFile::Open(no_index, TokenFormat::kMegatron).status().message(),
              HasSubstr("lost.idx"));
}

TEST_F(CorpusFormatsTest, NegativeIdsAreNoTokens) {
  const std::string path = Write("n.bin", Bytes<int64_t>({5, -3}));
  Write("n.idx", Index(5, 8, {2}));
  const TokenFile file = *TokenFile::Open(path);
  std::vector<int64_t> tokens(2);
  EXPECT_THAT(file.Copy(0, absl::MakeSpan(tokens), 100).message(),
              HasSubstr("token 1 (byte 8) is -3"));
}

TEST_F(CorpusFormatsTest, WideHeadersCarryTheVocabulary) {
  const std::string path =
      Write("w.bin", MakeTokenHeader(2, 151669, 4) + Bytes<uint32_t>({151668, 3}));
  const TokenFile file = *TokenFile::Open(path);
  EXPECT_EQ(file.header().vocabulary, 151669);
  EXPECT_THAT(Tokens(file), ElementsAre(151668, 3));
}

// Three rows of four tokens and one of padding behind them, as packed samples are written.
constexpr int64_t kRow = 4;
std::string MaskBytes(const std::vector<uint8_t>& bits, int64_t row_length = kRow) {
  int64_t trained = 0;
  for (const uint8_t b : bits) {
    trained += b & kMaskTrained;
  }
  return MakeMaskHeader({static_cast<int64_t>(bits.size()), row_length, trained}) + Bytes(bits);
}
std::string TokenBytes(const std::vector<uint16_t>& tokens) {
  return MakeTokenHeader(static_cast<int64_t>(tokens.size()), 100) + Bytes(tokens);
}

TEST_F(CorpusFormatsTest, AMaskSaysWhereSamplesStartAndWhatIsTrainedOn) {
  const std::string path = Write("t.bin", TokenBytes({1, 2, 3, 4, 5, 6, 9, 9, 0}));
  Write("t.bin.mask", MaskBytes({2, 0, 1, 3, 2, 1, 2, 0, 2}));
  const absl::StatusOr<TokenCorpus> corpus =
      TokenCorpus::Open(std::vector<std::string>{path}, TokenFormat::kAuto);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  ASSERT_TRUE(corpus->is_masked(0) && corpus->has_masks());
  EXPECT_TRUE(corpus->CheckRowLength(kRow).ok());
  EXPECT_THAT(
      corpus->CheckRowLength(8).message(),
      HasSubstr("rows of 4 tokens, but data.sequence_length is 8; set it to 4, or prepare"));
  std::vector<int64_t> row(kRow + 1);
  std::vector<uint8_t> mask(kRow + 1);
  std::vector<int64_t> positions(kRow);
  std::vector<int64_t> targets(kRow);
  const auto read = [&](int64_t offset) {
    ASSERT_TRUE(corpus->Read({0, offset, 0}, kRow, 100, row.data()).ok());
    ASSERT_TRUE(corpus->ReadMask({0, offset, 0}, kRow, mask.data()).ok());
    MarkSamples(row, mask, absl::MakeSpan(positions), absl::MakeSpan(targets));
  };
  read(0);  // Token 4 starts a sample, so nothing predicts it, though its bit says "trained".
  EXPECT_THAT(positions, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(targets, ElementsAre(kIgnoredTarget, 3, kIgnoredTarget, kIgnoredTarget));
  read(4);  // The two last tokens are padding: a sample of its own without a target.
  EXPECT_THAT(positions, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(targets, ElementsAre(6, kIgnoredTarget, kIgnoredTarget, kIgnoredTarget));
}

TEST_F(CorpusFormatsTest, AnIdentityCountsTheMaskAndStaysForFilesWithout) {
  const std::string path = Write("t.bin", TokenBytes({1, 2, 3, 4, 5}));
  const auto identity = [&] {
    return *CorpusIdentity(*TokenCorpus::Open(std::vector<std::string>{path}, TokenFormat::kAuto));
  };
  const std::string without = identity();
  Write("t.bin.mask", MaskBytes({2, 1, 1, 1, 2}));
  const std::string with = identity();
  Write("t.bin.mask", MaskBytes({2, 1, 0, 1, 2}));
  EXPECT_NE(without, with);
  EXPECT_NE(identity(), with);
}

TEST_F(CorpusFormatsTest, DamagedMasksAreRefusedByName) {
  const std::string path = Write("t.bin", TokenBytes({1, 2, 3}));
  const auto why = [&](const std::string& mask) {
    Write("t.bin.mask", mask);
    const auto corpus = TokenCorpus::Open(std::vector<std::string>{path}, TokenFormat::kAuto);
    if (!corpus.ok()) {
      return std::string(corpus.status().message());
    }
    std::vector<uint8_t> bits(3);
    return std::string(corpus->ReadMask({0, 0, 0}, 2, bits.data()).message());
  };
  const std::string good = MaskBytes({2, 1, 1});
  EXPECT_EQ(why(good), "");
  EXPECT_THAT(why(MaskBytes({2, 1})), HasSubstr("it is for 2 tokens, but"));
  EXPECT_THAT(why(MaskBytes({2, 4, 1})), HasSubstr("byte 65 is 4, want 0 to 3"));
  EXPECT_THAT(why(good + "x"), HasSubstr("it has 68 bytes; its header promises 3 tokens"));
  EXPECT_THAT(why(good.substr(0, 30)), HasSubstr("ends at byte 30, inside the 64-byte header"));
  EXPECT_THAT(why("not a mask"), HasSubstr("does not begin with DTRNMASK"));
  std::string version = good;
  version[8] = 9;
  EXPECT_THAT(why(version), HasSubstr("version at byte 8 is 9"));
}

TEST_F(CorpusFormatsTest, AMixtureNumbersTheFilesOfItsPartsAndRefusesTwoVocabularies) {
  const std::string a = Write("a.bin", TokenBytes({1, 2, 3}));
  const std::string b = Write("b.bin", TokenBytes({4, 5, 6, 7}));
  const std::vector<CorpusPart> parts = {{{a}, 3}, {{b, a}, 1}};
  const absl::StatusOr<TokenCorpus> corpus = TokenCorpus::Open(parts, TokenFormat::kAuto);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const std::vector<SamplerPart> sampled = corpus->parts();
  ASSERT_EQ(sampled.size(), 2U);
  EXPECT_THAT(sampled[0].tokens_per_file, ElementsAre(3));
  EXPECT_EQ(sampled[0].weight, 3);
  EXPECT_THAT(sampled[1].tokens_per_file, ElementsAre(4, 3));
  EXPECT_THAT(corpus->tokens_per_file(), ElementsAre(3, 4, 3));
  const std::string other = Write("o.bin", MakeTokenHeader(2, 50257) + Bytes<uint16_t>({1, 2}));
  const std::vector<CorpusPart> two = {{{a}, 1}, {{other}, 1}};
  EXPECT_THAT(TokenCorpus::Open(two, TokenFormat::kAuto).status().message(),
              HasSubstr("has the vocabulary 50257"));
}

}  // namespace
}  // namespace dtrain::plan::corpus_formats_test
