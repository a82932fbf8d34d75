// Random numbers that are the same on every machine and in every version: SplitMix64 for hashing
// and shuffles, never std:: distributions, whose output is not specified. Plain values.
#pragma once

#include <cstdint>

namespace dtrain {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection with good avalanche.
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A small generator for tests, shuffles and nonces that need no secrecy. Not thread-safe.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) : state_(seed) {}
  constexpr uint64_t Next() {
    const uint64_t value = MixBits(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return value;
  }
  // Uniform in [0, bound) by multiply-shift; the bias is below bound / 2^64. REQUIRES: bound > 0.
  constexpr uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // Uniform in [0, 1).
  constexpr double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

// A pseudo-random permutation of [0, count), evaluated one index at a time without memory: a
// 4-round Feistel network over the next even power of two, with cycle walking (Black & Rogaway
// 2002).
class IndexPermutation {
 public:
  // REQUIRES: count > 0.
  constexpr IndexPermutation(uint64_t count, uint64_t seed) : count_(count), seed_(seed) {
    while (half_bits_ < 31 && (1ULL << (2 * half_bits_)) < count) {
      ++half_bits_;
    }
  }
  // The image of `index`. REQUIRES: index < count.
  constexpr uint64_t operator()(uint64_t index) const {
    do {
      index = Once(index);
    } while (index >= count_);  // Expected fewer than 4 rounds.
    return index;
  }

 private:
  constexpr uint64_t Once(uint64_t index) const {
    const uint64_t mask = (1ULL << half_bits_) - 1;
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (MixBits(right ^ MixBits(seed_ + round)) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }
  uint64_t count_;
  uint64_t seed_;
  unsigned half_bits_ = 1;
};

}  // namespace dtrain
