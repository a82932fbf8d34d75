// Helpers that the kernel tests share: variants to compare, ways to split a loop, data, distances.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/numeric/float16.h"
#include "base/numeric/prng.h"
#include "base/system/cpu_features.h"
#include "base/threads/parallel_for.h"
#include "gtest/gtest.h"
#include "kernels/simd/variant.h"

namespace dtrain::kernels::testing {

// Every level that this machine can run, the scalar oracle first.
inline std::vector<SimdLevel> RunnableLevels() {
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : {SimdLevel::kScalar, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= CpuSimdLevel()) {
      levels.push_back(level);
    }
  }
  return levels;
}

// Runs `body` once for each runnable variant, then restores the best one.
template <class Body>
void EachVariant(Body body) {
  for (const SimdLevel level : RunnableLevels()) {
    SetVariantForTesting(level);
    ASSERT_EQ(ActiveVariant(), SimdLevelName(level));
    SCOPED_TRACE(std::string(SimdLevelName(level)));
    body(level);
  }
  SetVariantForTesting(CpuSimdLevel());
}

// A ParallelFor with chunks of `grains` grains, dealt to `threads` threads, last chunk first.
struct Split {
  int threads = 1;
  int64_t grains = 1;

  void operator()(int64_t count, int64_t grain,
                  absl::FunctionRef<void(int64_t, int64_t)> body) const {
    const int64_t chunk = grain * grains;
    const int64_t chunks = (count + chunk - 1) / chunk;
    std::vector<std::thread> pool;
    pool.reserve(static_cast<size_t>(threads));
    for (int t = 0; t < threads; ++t) {
      pool.emplace_back([&, t] {
        for (int64_t c = chunks - 1 - t; c >= 0; c -= threads) {
          body(c * chunk, std::min(count, (c + 1) * chunk));
        }
      });
    }
    for (std::thread& thread : pool) {
      thread.join();
    }
  }
};
inline const std::vector<Split>& Splits() {
  static const std::vector<Split> splits = {{1, 1}, {1, 3}, {2, 1}, {3, 2}, {5, 1}};
  return splits;
}

// Sizes around every vector width and grain.
inline std::vector<int64_t> OddSizes() {
  return {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 4095, 4096, 4097, 16384, 50001};
}

inline float ToF(float x) { return x; }
inline float ToF(BFloat16 x) { return ToFloat(x); }
inline float ToF(Float16 x) { return ToFloat(x); }
inline void Assign(float& to, float x) { to = x; }
inline void Assign(BFloat16& to, float x) { to = ToBFloat16(x); }
inline void Assign(Float16& to, float x) { to = ToFloat16(x); }
inline void Assign(int64_t& to, float x) { to = static_cast<int64_t>(x); }
inline void Assign(int8_t& to, float x) { to = static_cast<int8_t>(x); }
inline void Assign(uint8_t& to, float x) { to = static_cast<uint8_t>(x); }
inline void Assign(double& to, float x) { to = static_cast<double>(x); }

// Bits, not values: NaN equals itself and -0 is not 0.
inline bool SameBytes(const void* a, const void* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

// `n` values that start `shift` elements into their allocation, so that they are unaligned.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t n, int64_t shift = 0)
      : n_(n), shift_(shift), data_(static_cast<size_t>(n + shift + kGuard)) {
    for (T& value : data_) {
      Assign(value, 77.0F);
    }
  }
  T* get() { return data_.data() + shift_; }
  const T* get() const { return data_.data() + shift_; }
  int64_t size() const { return n_; }
  T& operator[](int64_t i) { return get()[i]; }
  float operator()(int64_t i) const { return ToF(get()[i]); }

  // Uniform in [-scale, scale), the same for the same seed.
  Buffer& Fill(uint64_t seed, float scale = 1.0F, float centre = 0.0F) {
    SplitMix64 random(seed);
    for (int64_t i = 0; i < n_; ++i) {
      Assign((*this)[i], centre + scale * static_cast<float>(2 * random.Uniform() - 1));
    }
    return *this;
  }
  // The elements after the last are as they were made.
  bool GuardIntact() const {
    T guard;
    Assign(guard, 77.0F);
    return std::all_of(data_.end() - kGuard, data_.end(),
                       [&](const T& value) { return SameBytes(&value, &guard, sizeof(T)); });
  }
  bool SameBits(const Buffer& other) const {
    return n_ == other.n_ && SameBytes(get(), other.get(), static_cast<size_t>(n_) * sizeof(T));
  }
  // The same where every NaN is as good as another: a GPU's arithmetic keeps no payload.
  bool SameBitsOrNan(const Buffer& other) const {
    bool same = n_ == other.n_;
    for (int64_t i = 0; same && i < n_; ++i) {
      same = SameBytes(get() + i, other.get() + i, sizeof(T)) ||
             (std::isnan((*this)(i)) && std::isnan(other(i)));
    }
    return same;
  }

 private:
  static constexpr int64_t kGuard = 32;
  int64_t n_;
  int64_t shift_;
  std::vector<T> data_;
};

// The spacing of fp32 values around x, at least the smallest subnormal.
inline double Ulp32(double x) {
  const double magnitude = std::max(std::fabs(x), double{std::numeric_limits<float>::min()});
  return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}
// Half the spacing of T around x: what one rounding of an exact result costs.
template <class T>
double HalfUlp(double x) {
  return Ulp32(x) * (sizeof(T) == 4 ? 0.5 : 32768.0);  // bf16 has 16 bits less.
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace dtrain::kernels::testing
