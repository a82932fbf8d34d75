// Random bits by counter: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3"), for U = a SIMD vector, or uint32_t in CUDA and host code.
//
// Element i of a stream has its own 32 bits, whoever computes them and however a range is split.
// Elements come in runs of 64, so that sixteen lanes make four words each without moving any:
// element i is word (i / 16) % 4 of counter {(i / 64) * 16 + i % 16, offset}, key = seed.
//
// Where 16 bits an element are enough, runs are of 128 and neighbours share a word: element i has
// the low (i even) or high half of word (i / 32) % 4 of counter {(i / 128) * 16 + i % 32 / 2,
// offset}.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/word_math.h"

namespace dtrain::kernels {

struct PhiloxStream {
  uint64_t seed = 0;
  uint64_t offset = 0;  // Streams of one seed: a call, a layer, a step.
};

constexpr int64_t kPhiloxRun = 64;
constexpr int64_t kPhiloxHalfRun = 128;

template <class U>
struct PhiloxWords {
  U word[4];
};

// `set` makes a U of a uint32_t.
template <class U, class Set>
DT_HOST_DEVICE inline PhiloxWords<U> Philox(PhiloxWords<U> counter, uint64_t seed, Set set) {
  auto key0 = static_cast<uint32_t>(seed);
  auto key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    U high0, low0, high1, low1;
    Multiply(counter.word[0], 0xd2511f53U, high0, low0);
    Multiply(counter.word[2], 0xcd9e8d57U, high1, low1);
    counter = {{Xor(high1, counter.word[1], set(key0)), low1,
                Xor(high0, counter.word[3], set(key1)), low0}};
    key0 += 0x9e3779b9U;
    key1 += 0xbb67ae85U;
  }
  return counter;
}

// The words of a run's lanes: `lane` is 0 .. 15 in each element of a U.
template <class U, class Set>
DT_HOST_DEVICE inline PhiloxWords<U> PhiloxRun(const PhiloxStream& stream, int64_t run, U lane,
                                               Set set) {
  const uint64_t counter = static_cast<uint64_t>(run) * 16;
  return Philox(PhiloxWords<U>{{set(static_cast<uint32_t>(counter)) + lane,
                                set(static_cast<uint32_t>(counter >> 32)),
                                set(static_cast<uint32_t>(stream.offset)),
                                set(static_cast<uint32_t>(stream.offset >> 32))}},
                stream.seed, set);
}

}  // namespace dtrain::kernels
