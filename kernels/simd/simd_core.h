// The parts that every family of loops is written with: reads and writes of sixteen elements, and
// loops over ranges. Included by simd_loops.h after a simd_bits_*.h, with DT_SIMD naming that
// file's namespace.
//
// A loop takes sixteen elements at a time; the last few go through a zero-filled copy and the same
// code, so an element's bits never depend on where a range begins or ends.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/simd/simd_several.h"
#include "kernels/simd/simd_table.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

constexpr auto kSetWord = [](uint32_t x) { return SetWord(x); };

// ---- Several sixteens at once ----

template <class T>
Four LoadFour(const T* p) {
  return {Load(p), Load(p + 16), Load(p + 32), Load(p + 48)};
}
template <class T>
void StoreFour(T* p, const Four& x) {
  Store(p, x.a);
  Store(p + 16, x.b);
  Store(p + 32, x.c);
  Store(p + 48, x.d);
}
inline Four LoadFour(const BFloat16* p) {
  Four x;
  LoadPairs(p, x.a, x.b);
  LoadPairs(p + 32, x.c, x.d);
  return x;
}
inline void StoreFour(BFloat16* p, const Four& x) {
  StorePairs(p, x.a, x.b);
  StorePairs(p + 32, x.c, x.d);
}
// Past the caches. REQUIRES: p is aligned to 64 bytes.
template <class T>
void StreamFour(T* p, const Four& x) {
  Stream(p, x.a);
  Stream(p + 16, x.b);
  Stream(p + 32, x.c);
  Stream(p + 48, x.d);
}
inline void StreamFour(BFloat16* p, const Four& x) {
  StreamPairs(p, x.a, x.b);
  StreamPairs(p + 32, x.c, x.d);
}

// Loads fp32 elements into the lanes in which LoadFour puts elements of a T beside them.
template <class T>
Four LoadFourAs(const float* p) {
  return LoadFour(p);
}
template <>
inline Four LoadFourAs<BFloat16>(const float* p) {
  Four x;
  LoadPairs(p, x.a, x.b);
  LoadPairs(p + 32, x.c, x.d);
  return x;
}
template <class T>
void StoreFourAs(float* p, const Four& x) {
  StoreFour(p, x);
}
template <>
inline void StoreFourAs<BFloat16>(float* p, const Four& x) {
  StorePairs(p, x.a, x.b);
  StorePairs(p + 32, x.c, x.d);
}

// ---- How a loop body reads and writes its elements ----

// Sixteen elements.
struct Whole {
  static constexpr int kElements = 16;
  static constexpr auto kSetAll = kSet;  // Makes the vector of a float.

  template <class T>
  F32x16 Read(const T* p) const {
    return Load(p);
  }
  template <class T>
  void Write(T* p, F32x16 x) const {
    Store(p, x);
  }
  template <class T>
  void WriteOut(T* p, F32x16 x) const {
    Store(p, x);
  }
  // fp32 whose lanes are those of a T.
  template <class T>
  F32x16 ReadAs(const float* p) const {
    return Load(p);
  }
  template <class T>
  void WriteAs(float* p, F32x16 x) const {
    Store(p, x);
  }
  // x with zeros where no element is: what was read is zero there, what is made of it may not be.
  F32x16 Keep(F32x16 x) const { return x; }
};
struct WholeStream : Whole {
  template <class T>
  void WriteOut(T* p, F32x16 x) const {
    Stream(p, x);
  }
};
// Fewer than sixteen.
struct Part {
  static constexpr int kElements = 16;
  static constexpr auto kSetAll = kSet;
  int64_t count;

  template <class T>
  F32x16 Read(const T* p) const {
    T copy[16] = {};
    __builtin_memcpy(copy, p, static_cast<uint64_t>(count) * sizeof(T));
    return Load(copy);
  }
  template <class T>
  void Write(T* p, F32x16 x) const {
    T copy[16];
    Store(copy, x);
    __builtin_memcpy(p, copy, static_cast<uint64_t>(count) * sizeof(T));
  }
  template <class T>
  void WriteOut(T* p, F32x16 x) const {
    Write(p, x);
  }
  template <class T>
  F32x16 ReadAs(const float* p) const {
    return Read(p);
  }
  template <class T>
  void WriteAs(float* p, F32x16 x) const {
    Write(p, x);
  }
  F32x16 Keep(F32x16 x) const {
    float copy[16];
    Store(copy, x);
    return Read(copy);
  }
};
// Reads and writes all of 64 elements.
struct FourWhole {
  static constexpr int kElements = 64;
  static constexpr auto kSetAll = kSetFour;

  template <class T>
  Four Read(const T* p) const {
    return LoadFour(p);
  }
  template <class T>
  void Write(T* p, const Four& x) const {
    StoreFour(p, x);
  }
  template <class T>
  void WriteOut(T* p, const Four& x) const {
    StoreFour(p, x);
  }
  template <class T>
  Four ReadAs(const float* p) const {
    return LoadFourAs<T>(p);
  }
  template <class T>
  void WriteAs(float* p, const Four& x) const {
    StoreFourAs<T>(p, x);
  }
  Four Keep(const Four& x) const { return x; }
};
struct FourStream : FourWhole {
  template <class T>
  void WriteOut(T* p, const Four& x) const {
    StreamFour(p, x);
  }
};

// A hundred and twenty-eight, for bodies of long chains.
struct EightWhole {
  static constexpr int kElements = 128;
  static constexpr auto kSetAll = kSetEight;

  template <class T>
  Eight Read(const T* p) const {
    return {LoadFour(p), LoadFour(p + 64)};
  }
  template <class T>
  void WriteOut(T* p, const Eight& x) const {
    StoreFour(p, x.low);
    StoreFour(p + 64, x.high);
  }
};
struct EightStream : EightWhole {
  template <class T>
  void WriteOut(T* p, const Eight& x) const {
    StreamFour(p, x.low);
    StreamFour(p + 64, x.high);
  }
};

// Thirty-two, for the same.
struct TwoWhole {
  static constexpr int kElements = 32;
  static constexpr auto kSetAll = kSetBoth;

  template <class T>
  Two Read(const T* p) const {
    return {Load(p), Load(p + 16)};
  }
  Two Read(const BFloat16* p) const {
    Two x;
    LoadPairs(p, x.a, x.b);
    return x;
  }
  template <class T>
  void Write(T* p, const Two& x) const {
    Store(p, x.a);
    Store(p + 16, x.b);
  }
  void Write(BFloat16* p, const Two& x) const { StorePairs(p, x.a, x.b); }
  template <class T>
  void WriteOut(T* p, const Two& x) const {
    Write(p, x);
  }
  Two Keep(const Two& x) const { return x; }
  template <class T>
  Two ReadAs(const float* p) const {
    Two x;
    if constexpr (std::is_same_v<T, BFloat16>) {
      LoadPairs(p, x.a, x.b);
    } else {
      x = Read(p);
    }
    return x;
  }
  template <class T>
  void WriteAs(float* p, const Two& x) const {
    if constexpr (std::is_same_v<T, BFloat16>) {
      StorePairs(p, x.a, x.b);
    } else {
      Write(p, x);
    }
  }
};
struct TwoStream : TwoWhole {
  template <class T>
  void WriteOut(T* p, const Two& x) const {
    Stream(p, x.a);
    Stream(p + 16, x.b);
  }
  void WriteOut(BFloat16* p, const Two& x) const { StreamPairs(p, x.a, x.b); }
};

// Runs body(io, i) over [0, n) by sixteens, for bodies of several types.
template <class Body>
DT_FLATTEN void EachSixteen(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    body(Whole{}, i);
  }
  if (i < n) {
    body(Part{n - i}, i);
  }
}

// The same with io.WriteOut past the caches. Streaming stores need whole aligned lines, and `out`
// is the buffer that decides; whoever calls this runs StreamFence() before the range is handed
// over.
constexpr uint64_t kLineBytes = 64;
template <class T, class Body>
DT_FLATTEN void EachSixteenUnfenced(int64_t n, const T* out, Write write, Body body) {
  constexpr uint64_t kBytes = 16 * sizeof(T);
  const uint64_t misaligned = reinterpret_cast<uint64_t>(out) % kBytes;
  if (write == Write::kCached || misaligned % sizeof(T) != 0) {
    EachSixteen(n, body);
    return;
  }
  int64_t i = misaligned == 0 ? 0 : static_cast<int64_t>((kBytes - misaligned) / sizeof(T));
  i = i < n ? i : n;
  if (i > 0) {
    body(Part{i}, int64_t{0});
  }
  for (; i + 16 <= n; i += 16) {
    body(WholeStream{}, i);
  }
  if (i < n) {
    body(Part{n - i}, i);
  }
}

// The same with its fence.
template <class T, class Body>
DT_FLATTEN void EachSixteen(int64_t n, const T* out, Write write, Body body) {
  EachSixteenUnfenced(n, out, write, body);
  StreamFence();
}

// How many elements a loop takes at once.
struct ByFour {
  using Whole = FourWhole;
  using Stream = FourStream;
};
// For loops with long chains of dependent instructions.
struct ByMany {
  using Whole = std::conditional_t<kManyRegisters, EightWhole, TwoWhole>;
  using Stream = std::conditional_t<kManyRegisters, EightStream, TwoStream>;
};

// For loops over many streams.
struct ByFew {
  using Whole = std::conditional_t<kManyRegisters, FourWhole, TwoWhole>;
  using Stream = std::conditional_t<kManyRegisters, FourStream, TwoStream>;
};

// Runs body(io, i) over [i, n) by a large Io, by sixteens, then by what is left.
template <class Large, class Sixteen, class Body>
DT_FLATTEN void EachFrom(int64_t i, int64_t n, Body body) {
  for (; i + Large::kElements <= n; i += Large::kElements) {
    body(Large{}, i);
  }
  for (; i + Sixteen::kElements <= n; i += Sixteen::kElements) {
    body(Sixteen{}, i);
  }
  if (i < n) {
    body(Part{n - i}, i);
  }
}

// Runs body(io, i) over [0, n) by as many, for bodies of one type.
template <class By = ByFour, class Body>
DT_FLATTEN void Each(int64_t n, Body body) {
  EachFrom<typename By::Whole, Whole>(0, n, body);
}

// Elements before the first line of `out` that begins in it; -1 where none can.
template <class T>
int64_t ElementsToLine(const T* out) {
  const uint64_t past = reinterpret_cast<uint64_t>(out) % kLineBytes;
  if (past % sizeof(T) != 0) {
    return -1;
  }
  return past == 0 ? 0 : static_cast<int64_t>((kLineBytes - past) / sizeof(T));
}

// The same where io.WriteOut goes past the caches if `write` says so, without and with its fence: a
// fence for each row would stop its stores.
template <class By = ByFour, class T, class Body>
DT_FLATTEN void EachUnfenced(int64_t n, const T* out, Write write, Body body) {
  const int64_t head = write == Write::kStream ? ElementsToLine(out) : -1;
  if (head < 0) {
    Each<By>(n, body);
    return;
  }
  int64_t i = 0;
  while (i < head && i < n) {
    const int64_t left = head < n ? head - i : n - i;
    const int64_t count = left < 16 ? left : 15;
    body(Part{count}, i);
    i += count;
  }
  EachFrom<typename By::Stream, WholeStream>(i, n, body);
}
template <class By = ByFour, class T, class Body>
DT_FLATTEN void Each(int64_t n, const T* out, Write write, Body body) {
  EachUnfenced<By>(n, out, write, body);
  StreamFence();
}

// The bits of from [n], past the caches if `write` says so and the alignment allows; whoever calls
// this runs StreamFence() before the range is handed over.
template <class T>
void CopyBits(int64_t n, const T* from, T* to, Write write) {
  constexpr int64_t kLine = kLineBytes / sizeof(T);
  const auto copy = [&](int64_t begin, int64_t end) {
    __builtin_memcpy(to + begin, from + begin, static_cast<uint64_t>(end - begin) * sizeof(T));
  };
  const int64_t head = write == Write::kStream ? ElementsToLine(to) : -1;
  if (head < 0 || head > n) {
    copy(0, n);
    return;
  }
  copy(0, head);
  int64_t i = head;
  for (; i + kLine <= n; i += kLine) {
    Stream(reinterpret_cast<float*>(to + i), Load(reinterpret_cast<const float*>(from + i)));
  }
  copy(i, n);
}

// `write`, if both results are aligned alike: otherwise only cached stores are safe.
template <class T>
Write WriteAlike(const T* a, const T* b, Write write) {
  const uint64_t apart = reinterpret_cast<uint64_t>(a) - reinterpret_cast<uint64_t>(b);
  return apart % kLineBytes == 0 ? write : Write::kCached;
}

// Asks for the line of p. Any address will do.
inline void Prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
// The lines of the elements that a body takes at p.
template <class Io, class T>
void PrefetchFor(Io /*io*/, const T* p) {
  for (uint64_t byte = 0; byte < Io::kElements * sizeof(T); byte += kLineBytes) {
    Prefetch(reinterpret_cast<const char*>(p) + byte);
  }
}
// The same into a cache further out, where what is asked for has no room in the innermost. Loops
// that read a row twice ask for the next row so: otherwise memory would not be read meanwhile.
template <class Io, class T>
void PrefetchFarFor(Io /*io*/, const T* p) {
  for (uint64_t byte = 0; byte < Io::kElements * sizeof(T); byte += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + byte, 0, 2);
  }
}
// Long streams are asked for this far ahead of where they are read: the hardware's own prefetching
// stops at pages and leaves a core alone with memory at three quarters of its rate.
constexpr int64_t kAheadBytes = 2048;
template <class Io, class T>
void PrefetchAhead(Io io, const T* p) {
  PrefetchFor(io, p + kAheadBytes / static_cast<int64_t>(sizeof(T)));
}

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
