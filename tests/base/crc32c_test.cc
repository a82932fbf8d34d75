// The checksum of RFC 3720, with and without the CPU's instruction, whole or in pieces.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/prng.h"

namespace dtrain {
namespace {

// One bit at a time, straight from the reflected polynomial 0x82f63b78.
uint32_t BitwiseCrc32c(const std::vector<uint8_t>& data) {
  uint32_t crc = ~0U;
  for (const uint8_t byte : data) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  return ~crc;
}

TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283U);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8a9136aaU);  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43U);
  EXPECT_EQ(Crc32c(nullptr, 0), 0U);
}

TEST(Crc32c, EqualsTheBitwiseFormAtEveryLengthAndAlignment) {
  SplitMix64 random(7);
  std::vector<uint8_t> memory(9000);
  for (uint8_t& byte : memory) {
    byte = static_cast<uint8_t>(random.Next());
  }
  for (size_t bytes : {1U, 3U, 7U, 8U, 9U, 63U, 64U, 65U, 255U, 256U, 257U, 511U, 512U, 767U, 1023U,
                       3000U, 8192U}) {
    for (size_t offset = 0; offset < 9; ++offset) {
      const std::vector<uint8_t> data(memory.begin() + static_cast<ptrdiff_t>(offset),
                                      memory.begin() + static_cast<ptrdiff_t>(offset + bytes));
      EXPECT_EQ(Crc32c(memory.data() + offset, bytes), BitwiseCrc32c(data))
          << bytes << " bytes at offset " << offset;
    }
  }
}

TEST(Crc32c, ContinuesOverPieces) {
  std::string text(5000, 'x');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(MixBits(i));
  }
  const uint32_t whole = Crc32c(text.data(), text.size());
  for (const size_t cut : {0U, 1U, 8U, 777U, 4999U, 5000U}) {
    const uint32_t first = Crc32c(text.data(), cut);
    EXPECT_EQ(Crc32c(text.data() + cut, text.size() - cut, first), whole) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace dtrain
