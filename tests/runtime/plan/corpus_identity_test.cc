#include "runtime/plan/data/corpus_identity.h"

#include <string>
#include <vector>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::plan::corpus_identity_test {
namespace {

class CorpusIdentityTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::vector<uint16_t>& tokens) {
    std::string path = folder_.path() + "/" + name;
    const std::string bytes(reinterpret_cast<const char*>(tokens.data()),
                            tokens.size() * sizeof(uint16_t));
    EXPECT_TRUE(
        WriteFileAtomic(path, MakeTokenHeader(static_cast<int64_t>(tokens.size()), 0) + bytes)
            .ok());
    return path;
  }
  static std::string Of(const std::vector<std::string>& paths) {
    const auto corpus = TokenCorpus::Open(paths, TokenFormat::kAuto);
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    const auto identity = CorpusIdentity(*corpus);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return identity.value_or("");
  }
  static std::vector<uint16_t> Text(size_t length, uint16_t first) {
    std::vector<uint16_t> tokens(length);
    for (size_t i = 0; i < length; ++i) {
      tokens[i] = static_cast<uint16_t>((first + 7 * i) % 251);
    }
    return tokens;
  }
  TempFolder folder_;
};

TEST_F(CorpusIdentityTest, NamesDoNotCountButTokensLengthsAndOrderDo) {
  const std::string a = Write("a.bin", Text(5000, 1));
  const std::string moved = Write("moved.bin", Text(5000, 1));
  const std::string b = Write("b.bin", Text(5000, 2));
  const std::string shorter = Write("shorter.bin", Text(4999, 1));
  EXPECT_EQ(Of({a}), Of({moved}));
  EXPECT_EQ(Of({a, b}), Of({moved, b}));
  EXPECT_NE(Of({a}), Of({b})) << "of equal length";
  EXPECT_NE(Of({a}), Of({shorter}));
  EXPECT_NE(Of({a, b}), Of({b, a}));
  EXPECT_NE(Of({a}), Of({a, b}));
}

// Checkpoints of older builds hold it. Worked out by another program from the rule in the header.
TEST_F(CorpusIdentityTest, IsTheSameInEveryBuild) {
  EXPECT_EQ(Of({Write("a.bin", Text(100000, 1)), Write("b.bin", Text(100, 2))}),
            "166d66d931fead6f");
  EXPECT_EQ(Of({Write("c.bin", Text(65, 3))}), "b7be12dcf8a97282");
}

TEST_F(CorpusIdentityTest, EveryTokenOfASmallFileAndTheEndsOfALargeOneCount) {
  for (const size_t length : {1U, 64U, 65U, 16384U, 1000000U}) {
    const std::vector<uint16_t> text = Text(length, 3);
    const std::string whole = Of({Write("whole.bin", text)});
    std::vector<size_t> places = {0, length - 1};
    if (length <= 16384) {
      places.insert(places.end(), {length / 2, length / 3});
    }
    for (const size_t place : places) {
      std::vector<uint16_t> other = text;
      other[place] = 255;
      EXPECT_NE(Of({Write("other.bin", other)}), whole) << length << ", at " << place;
    }
  }
}

TEST_F(CorpusIdentityTest, ManyFilesAreEachLookedInto) {
  std::vector<std::string> paths;
  for (int i = 0; i < 200; ++i) {
    paths.push_back(Write("f" + std::to_string(i) + ".bin", Text(600, static_cast<uint16_t>(i))));
  }
  const std::string all = Of(paths);
  paths[117] = Write("other.bin", Text(600, 250));
  EXPECT_NE(Of(paths), all);
}

}  // namespace
}  // namespace dtrain::plan::corpus_identity_test
