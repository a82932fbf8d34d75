#include "runtime/plan/tokenizer/bpe.h"

#include <algorithm>
#include <map>

#include "base/numeric/prng.h"
#include "gtest/gtest.h"

namespace dtrain::plan::bpe_test {
namespace {

using Ids = std::vector<uint32_t>;

// Merges of random symbols; bytes 'a' to 'd' are symbols 0 to 3.
BpeParts RandomParts(SplitMix64& random, uint32_t merges) {
  BpeParts parts;
  parts.bytes_first = true;
  parts.byte_ids.fill(kNoToken);
  for (uint32_t i = 0; i < 4; ++i) {
    parts.byte_ids['a' + i] = i;
  }
  for (uint32_t i = 0; i < merges; ++i) {
    parts.merges.push_back({static_cast<uint32_t>(random.Below(4 + i)),
                            static_cast<uint32_t>(random.Below(4 + i)), 4 + i});
  }
  return parts;
}

// The definition: merge the leftmost pair of the least rank until there is none.
Ids ByDefinition(const BpeParts& parts, const std::string& word) {
  std::map<std::pair<uint32_t, uint32_t>, size_t> ranks;
  for (size_t i = 0; i < parts.merges.size(); ++i) {
    ranks[{parts.merges[i].left, parts.merges[i].right}] = i;
  }
  Ids ids;
  for (const char c : word) {
    ids.push_back(parts.byte_ids[static_cast<uint8_t>(c)]);
  }
  while (true) {
    size_t best = parts.merges.size();
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = ranks.find({ids[i], ids[i + 1]});
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == parts.merges.size()) {
      return ids;
    }
    ids[at] = parts.merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(BpeTest, ShortAndLongWordsAreMergedByTheDefinition) {
  SplitMix64 random(7);
  for (int round = 0; round < 40; ++round) {
    const BpeParts parts = RandomParts(random, 60);
    const Bpe bpe(parts);
    BpeScratch scratch;
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (uint64_t n = 1 + random.Below(i % 3 == 0 ? 300 : 40); n > 0; --n) {
        word += static_cast<char>('a' + random.Below(4));
      }
      const Ids expected = ByDefinition(parts, word);
      for (const char* time : {"first", "second"}) {  // The second one may come from the cache.
        Ids ids;
        bpe.EncodeWord(word, &scratch, &ids);
        ASSERT_EQ(ids, expected) << time << " " << word;
      }
    }
  }
}

TEST(BpeTest, UnknownBytesAreLeftOutOrStandForOneToken) {
  SplitMix64 random(1);
  BpeParts parts = RandomParts(random, 0);
  BpeScratch scratch;
  Ids ids;
  Bpe(parts).EncodeWord("axxbx", &scratch, &ids);
  EXPECT_EQ(ids, (Ids{0, 1}));
  parts.unknown = 9;
  ids.clear();
  BpeScratch other;
  Bpe(parts).EncodeWord("axxbx", &other, &ids);
  EXPECT_EQ(ids, (Ids{0, 9, 9, 1, 9}));
  parts.fuse_unknown = true;
  ids.clear();
  BpeScratch third;
  Bpe(parts).EncodeWord("axxbx", &third, &ids);
  EXPECT_EQ(ids, (Ids{0, 9, 1, 9}));
}

TEST(BpeTest, ALongWordTakesLittleMoreThanLinearTime) {
  SplitMix64 random(3);
  BpeParts parts = RandomParts(random, 0);
  for (uint32_t i = 0; i < 16; ++i) {  // a, aa, aaaa, ...
    parts.merges.push_back({i == 0 ? 0 : 3 + i, i == 0 ? 0 : 3 + i, 4 + i});
  }
  BpeScratch scratch;
  Ids ids;
  // Quadratic work would be 10^12 steps.
  Bpe(parts).EncodeWord(std::string(1 << 20, 'a'), &scratch, &ids);
  EXPECT_EQ(ids, Ids(16, 19));
}

}  // namespace
}  // namespace dtrain::plan::bpe_test
