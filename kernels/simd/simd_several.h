// Several sixteens side by side, and their arithmetic: a part of simd_core.h.
#pragma once

#include <cstdint>

#include "kernels/simd/simd_table.h"

namespace dtrain::kernels::DT_SIMD {
namespace {

constexpr auto kSet = [](float x) { return Set(x); };

// One chain of dependent instructions leaves most of a core idle, so loops take 64 elements at a
// time where they can: four chains side by side. The type that is read decides which lane has
// which element: bf16 is read in pairs, its even elements apart from its odd ones, which takes a
// third of the instructions. So a loop's body reads and writes one type, and fp32 beside bf16 by
// ReadAs and WriteAs, which use the lanes of that type.
struct Four {
  F32x16 a, b, c, d;
};
// Eight chains, for loops whose chains are long: they fill all units of a core.
struct Eight {
  Four low, high;
};
// The same where registers are few: more would live in memory, and what a core looks ahead fills
// it from one round of the loop to the next.
struct Two {
  F32x16 a, b;
};

#define DT_OPERATOR(op)                                                                   \
  inline Two operator op(const Two& x, const Two& y) { return {x.a op y.a, x.b op y.b}; } \
  inline Four operator op(const Four& x, const Four& y) {                                 \
    return {x.a op y.a, x.b op y.b, x.c op y.c, x.d op y.d};                              \
  }                                                                                       \
  inline Eight operator op(const Eight& x, const Eight& y) {                              \
    return {x.low op y.low, x.high op y.high};                                            \
  }
DT_OPERATOR(+)
DT_OPERATOR(-)
DT_OPERATOR(*)
DT_OPERATOR(/)
#undef DT_OPERATOR
#define DT_UNARY(name)                                                                     \
  inline Two name(const Two& x) { return {name(x.a), name(x.b)}; }                         \
  inline Four name(const Four& x) { return {name(x.a), name(x.b), name(x.c), name(x.d)}; } \
  inline Eight name(const Eight& x) { return {name(x.low), name(x.high)}; }
DT_UNARY(Sqrt)
DT_UNARY(Round)
DT_UNARY(Abs)
DT_UNARY(NegativeAbs)
DT_UNARY(Sign)
DT_UNARY(Pow2OfLowBits)
#undef DT_UNARY
#define DT_BINARY(name)                                                                    \
  inline Two name(const Two& x, const Two& y) { return {name(x.a, y.a), name(x.b, y.b)}; } \
  inline Four name(const Four& x, const Four& y) {                                         \
    return {name(x.a, y.a), name(x.b, y.b), name(x.c, y.c), name(x.d, y.d)};               \
  }                                                                                        \
  inline Eight name(const Eight& x, const Eight& y) {                                      \
    return {name(x.low, y.low), name(x.high, y.high)};                                     \
  }
DT_BINARY(Max)
DT_BINARY(Min)
#undef DT_BINARY
#define DT_TERNARY(name)                                                                         \
  inline Two name(const Two& x, const Two& y, const Two& z) {                                    \
    return {name(x.a, y.a, z.a), name(x.b, y.b, z.b)};                                           \
  }                                                                                              \
  inline Four name(const Four& x, const Four& y, const Four& z) {                                \
    return {name(x.a, y.a, z.a), name(x.b, y.b, z.b), name(x.c, y.c, z.c), name(x.d, y.d, z.d)}; \
  }                                                                                              \
  inline Eight name(const Eight& x, const Eight& y, const Eight& z) {                            \
    return {name(x.low, y.low, z.low), name(x.high, y.high, z.high)};                            \
  }
DT_TERNARY(Fma)
DT_TERNARY(Fms)
DT_TERNARY(NegatedFma)
DT_TERNARY(SelectPositive)
#undef DT_TERNARY

inline Four InFour(F32x16 x) { return {x, x, x, x}; }
constexpr auto kSetFour = [](float x) { return InFour(Set(x)); };
constexpr auto kSetBoth = [](float x) { return Two{Set(x), Set(x)}; };
constexpr auto kSetEight = [](float x) { return Eight{kSetFour(x), kSetFour(x)}; };

}  // namespace
}  // namespace dtrain::kernels::DT_SIMD
