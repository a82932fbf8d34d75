// The checksum of RFC 3720, whole or in pieces, and each form of it for the CPUs that have it.
#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/crc32c_forms.h"
#include "base/numeric/prng.h"

namespace dtrain::crc32c_test {
namespace {

// The CRC one bit at a time, directly from the reflected polynomial 0x82f63b78.
uint32_t BitwiseState(const uint8_t* data, size_t bytes, uint32_t state) {
  for (size_t i = 0; i < bytes; ++i) {
    state ^= data[i];
    for (int bit = 0; bit < 8; ++bit) {
      state = (state >> 1) ^ ((state & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  return state;
}

constexpr uint64_t kSeed = 7;

std::vector<uint8_t> RandomBytes(size_t count) {
  std::printf("seed %d\n", static_cast<int>(kSeed));
  SplitMix64 random(kSeed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random.Next());
  }
  return bytes;
}

TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283U);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8a9136aaU);  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43U);
  EXPECT_EQ(Crc32c(nullptr, 0), 0U);
}

// Lengths around every unit of the forms: words of 8, folds of 128 and 256, blocks of 7,936, three
// streams of 4,096, and two rounds of those with a rest.
constexpr size_t kLengths[] = {1,    3,     7,     8,     9,     63,    64,    65,
                               127,  128,   129,   255,   256,   257,   511,   512,
                               767,  1023,  3000,  7935,  7936,  7937,  8064,  8192,
                               8320, 12287, 12288, 12289, 15872, 16000, 24576, 40000};
constexpr size_t kOffsetsEnd = 9;  // Starts at each place in a word, and the next word's first.

TEST(Crc32c, EqualsTheBitwiseFormAtEveryLengthAndAlignment) {
  const std::vector<uint8_t> memory = RandomBytes(40000 + kOffsetsEnd);
  for (const size_t bytes : kLengths) {
    for (size_t offset = 0; offset < kOffsetsEnd; ++offset) {
      EXPECT_EQ(Crc32c(memory.data() + offset, bytes),
                ~BitwiseState(memory.data() + offset, bytes, ~0U))
          << bytes << " bytes at offset " << offset;
    }
  }
}

using Form = uint32_t (*)(const uint8_t* data, size_t bytes, uint32_t state);

// Compares the form for all lengths that are multiples of `unit`, from the initial and from another
// state.
void ExpectBitwise(Form form, size_t unit) {
  const std::vector<uint8_t> memory = RandomBytes(40000 + kOffsetsEnd);
  size_t compared = 0;
  for (const size_t bytes : kLengths) {
    for (size_t offset = 0; bytes % unit == 0 && offset < kOffsetsEnd; ++offset) {
      for (const uint32_t state : {~0U, 0x1234abcdU}) {
        EXPECT_EQ(form(memory.data() + offset, bytes, state),
                  BitwiseState(memory.data() + offset, bytes, state))
            << bytes << " bytes at offset " << offset << " from state " << state;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 5 * 2 * kOffsetsEnd);
}

// Compares with the portable form for every multiple of `unit` up to more than three blocks of the
// fused form (for single bytes more than eight folds), and for a large one, at aligned and odd
// addresses.
void ExpectPortable(Form form, size_t unit) {
  constexpr size_t kLarge = size_t{1} << 20;
  const std::vector<uint8_t> memory = RandomBytes(kLarge + kOffsetsEnd);
  const auto expect_equal = [&](size_t bytes, size_t offset) {
    const uint8_t* const data = memory.data() + offset;
    ASSERT_EQ(form(data, bytes, 0x89abcdefU), crc32c::Portable(data, bytes, 0x89abcdefU))
        << bytes << " bytes at offset " << offset;
  };
  const size_t end = unit == 1 ? 1100 : 25000;
  for (size_t bytes = unit; bytes < end; bytes += unit) {
    for (size_t offset = 0; offset < kOffsetsEnd; ++offset) {
      ASSERT_NO_FATAL_FAILURE(expect_equal(bytes, offset));
    }
  }
  for (const size_t offset : {size_t{0}, size_t{3}}) {
    ASSERT_NO_FATAL_FAILURE(expect_equal(kLarge, offset));
  }
}

TEST(Crc32cForms, ThePortableOneIsTheBitwiseOne) { ExpectBitwise(crc32c::Portable, 1); }

#if defined(__x86_64__)
TEST(Crc32cForms, TheInstructionsOneIsTheBitwiseOne) {
  if (!crc32c::HasHardware()) {
    GTEST_SKIP() << "this CPU has no SSE4.2";
  }
  static_assert(crc32c::kThreeStreams == 12288, "kLengths goes around it");
  ExpectBitwise(crc32c::Hardware, 1);
  ExpectPortable(crc32c::Hardware, 1);
}

TEST(Crc32cForms, TheFoldingOneIsTheBitwiseOne) {
  if (!crc32c::HasFolded()) {
    GTEST_SKIP() << "this CPU has no AVX-512F with VPCLMULQDQ";
  }
  ExpectBitwise(crc32c::Folded, crc32c::kFolded);
  ExpectPortable(crc32c::Folded, crc32c::kFolded);
}

TEST(Crc32cForms, TheFusedOneIsTheBitwiseOne) {
  if (!crc32c::HasFused()) {
    GTEST_SKIP() << "this CPU has no AVX2 with VPCLMULQDQ";
  }
  static_assert(crc32c::kFusedBlock == 7936, "kLengths goes around it");
  ExpectBitwise(crc32c::Fused, crc32c::kFused);
  ExpectPortable(crc32c::Fused, crc32c::kFused);
}
#endif

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
}  // namespace dtrain::crc32c_test
