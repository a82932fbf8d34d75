#include "runtime/plan/data/widen_tokens.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::widen_tokens_test {
namespace {

using ::testing::ElementsAre;

// The levels that have a form of their own and that this machine supports.
std::vector<SimdLevel> Levels() {
  std::vector<SimdLevel> levels = {SimdLevel::kScalar};
  if (CpuSimdLevel() >= SimdLevel::kAvx2) {
    levels.push_back(SimdLevel::kAvx2);
  }
  return levels;
}

template <typename Id>
std::string Bytes(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

template <typename Id>
class WidenTokensTest : public ::testing::Test {
 protected:
  static constexpr int kWidth = sizeof(Id);
};
using Widths = ::testing::Types<uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(WidenTokensTest, Widths);

// All lengths around those of registers, from any address; nothing is written behind the end.
TYPED_TEST(WidenTokensTest, AllBytesAreTheIdsThatTheyStandFor) {
  SplitMix64 random(1);
  for (const SimdLevel level : Levels()) {
    for (const size_t count : {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1025}) {
      for (size_t offset = 0; offset < 4; ++offset) {
        std::vector<TypeParam> ids(count);
        for (TypeParam& id : ids) {
          id = static_cast<TypeParam>(random.Next());
        }
        const std::string bytes = std::string(offset, 'x') + Bytes(ids);
        std::vector<int64_t> wide(count + 1, -77);
        EXPECT_TRUE(WidenTokens(bytes.data() + offset, this->kWidth,
                                absl::MakeSpan(wide).first(count), 0, level));
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(wide[i], static_cast<int64_t>(ids[i]))
              << SimdLevelName(level) << " " << count << " from " << offset << " at " << i;
        }
        EXPECT_EQ(wide.back(), -77);
      }
    }
  }
}

// The vocabularies lie around the places where a comparison of signed or of narrower numbers errs.
TYPED_TEST(WidenTokensTest, OneIdThatIsNotBelowTheVocabularyIsFoundAnywhere) {
  constexpr TypeParam kLargest = std::numeric_limits<TypeParam>::max();
  constexpr size_t kCount = 67;
  for (const SimdLevel level : Levels()) {
    for (const int64_t vocabulary :
         {int64_t{1}, int64_t{127}, int64_t{128}, int64_t{129}, int64_t{255}, int64_t{256},
          int64_t{257}, int64_t{32768}, int64_t{32769}, int64_t{65535}, int64_t{65536},
          int64_t{65537}, int64_t{1} << 31, (int64_t{1} << 31) + 1, (int64_t{1} << 32) - 1,
          int64_t{1} << 32, (int64_t{1} << 32) + 1, std::numeric_limits<int64_t>::max()}) {
      const uint64_t last = static_cast<uint64_t>(vocabulary) - 1;
      const TypeParam allowed = last < kLargest ? static_cast<TypeParam>(last) : kLargest;
      std::vector<TypeParam> ids(kCount, allowed);
      std::vector<int64_t> wide(kCount);
      const auto is_below = [&] {
        return WidenTokens(Bytes(ids).data(), this->kWidth, absl::MakeSpan(wide), vocabulary,
                           level);
      };
      EXPECT_TRUE(is_below()) << SimdLevelName(level) << " " << vocabulary;
      for (size_t i = 0; i < kCount && allowed < kLargest; ++i) {
        for (const TypeParam beyond : {static_cast<TypeParam>(allowed + 1), kLargest}) {
          ids[i] = beyond;
          EXPECT_FALSE(is_below()) << SimdLevelName(level) << " " << vocabulary << " at " << i;
          EXPECT_EQ(wide[i], static_cast<int64_t>(beyond));
        }
        ids[i] = allowed;
      }
    }
  }
}

TEST(WidenTokens, NegativeIdsAreBelowNoVocabulary) {
  const std::string bytes = Bytes<int64_t>({5, -3});
  std::vector<int64_t> wide(2);
  for (const SimdLevel level : Levels()) {
    const int64_t largest = std::numeric_limits<int64_t>::max();
    EXPECT_FALSE(WidenTokens(bytes.data(), 8, absl::MakeSpan(wide), largest, level));
    EXPECT_TRUE(WidenTokens(bytes.data(), 8, absl::MakeSpan(wide), 0, level));
    EXPECT_THAT(wide, ElementsAre(5, -3));
  }
}

}  // namespace
}  // namespace dtrain::plan::widen_tokens_test
