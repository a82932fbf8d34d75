// CUDA's words for kernels, in C++: included before all else into what translate.py writes. One
// that is missing here fails to compile, and is added when a kernel first uses it.
#pragma once

#include <cuda_runtime.h>
#include <math.h>
#include <string.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "tests/device_emulation/device.h"

// One block runs at a time; translate.py has each of them filled when a block begins.
#undef __shared__
#define __shared__ static

#define threadIdx (::dtrain::emulation::indices.thread)
#define blockIdx (::dtrain::emulation::indices.block)
#define blockDim (::dtrain::emulation::indices.block_size)
#define gridDim (::dtrain::emulation::indices.grid_size)

inline void __syncthreads(::dtrain::emulation::Where where = {__builtin_FILE(), __builtin_LINE()}) {
  ::dtrain::emulation::SyncBlock(where);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32,
                  ::dtrain::emulation::Where where = {__builtin_FILE(), __builtin_LINE()}) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t word = 0;
  memcpy(&word, &value, sizeof(T));
  const uint64_t* const words = ::dtrain::emulation::ExchangeInWarp(mask, word, where);
  const int lane = static_cast<int>(::dtrain::emulation::Lane());
  // A lane of a later segment keeps its own value; one of an earlier segment may be read.
  const int other = (lane ^ distance) / width <= lane / width ? lane ^ distance : lane;
  DT_CHECK((mask >> other & 1U) != 0)
      << " " << where.file << ":" << where.line << ": lane " << lane << " reads lane " << other
      << ", which its mask does not name";
  memcpy(&value, &words[other], sizeof(T));
  return value;
}

inline int __any_sync(unsigned mask, int predicate,
                      ::dtrain::emulation::Where where = {__builtin_FILE(), __builtin_LINE()}) {
  const uint64_t* const words =
      ::dtrain::emulation::ExchangeInWarp(mask, predicate != 0 ? 1 : 0, where);
  uint64_t any = 0;
  for (int lane = 0; lane < 32; ++lane) {
    any |= (mask >> lane & 1U) != 0 ? words[lane] : 0;
  }
  return any != 0 ? 1 : 0;
}

inline unsigned __reduce_max_sync(unsigned mask, unsigned value,
                                  ::dtrain::emulation::Where where = {__builtin_FILE(),
                                                                      __builtin_LINE()}) {
  const uint64_t* const words = ::dtrain::emulation::ExchangeInWarp(mask, value, where);
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1U) != 0 && words[lane] > value) {
      value = static_cast<unsigned>(words[lane]);
    }
  }
  return value;
}

// A store by the instruction of that name; wherever it caches, it is one store here.
template <class T>
void __stwb(T* address, T value) {
  *address = value;
}

inline unsigned atomicMax(unsigned* address, unsigned value) {
  const unsigned before = *address;
  *address = before > value ? before : value;
  return before;
}

inline unsigned atomicAdd(unsigned* address, unsigned value) {
  const unsigned before = *address;
  *address = before + value;
  return before;
}

inline unsigned atomicExch(unsigned* address, unsigned value) {
  const unsigned before = *address;
  *address = value;
  return before;
}

// Threads run one after the other: each finds what the others wrote.
inline void __threadfence() {}

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
// Computed as on a GPU, with the rounded product, but without the 2 ulp of its exp2.
inline float __expf(float x) { return ::exp2f(x * 0x1.715476p+0F); }
