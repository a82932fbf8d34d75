#include "kernels/layers/rope.h"

#include "kernels/layers/rope_math.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::rope_test {
namespace {

using testing::Buffer;
using testing::EachVariant;

struct Shape {
  RopeForm form;
  int64_t tokens, heads, kv_heads, head_dim, rotary_dim;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes;
  for (const RopeForm form : {RopeForm::kHalfSplit, RopeForm::kInterleaved}) {
    for (const auto& [head_dim, rotary_dim] :
         std::vector<std::pair<int64_t, int64_t>>{{2, 2},
                                                  {3, 2},
                                                  {10, 10},
                                                  {16, 16},
                                                  {30, 30},
                                                  {32, 32},
                                                  {34, 34},
                                                  {64, 64},
                                                  {64, 32},
                                                  {80, 20},
                                                  {96, 96},
                                                  {128, 128},
                                                  {129, 66},
                                                  {48, 0},
                                                  {256, 256}}) {
      for (const auto& [heads, kv_heads] :
           std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {4, 2}, {3, 1}}) {
        shapes.push_back({form, 7, heads, kv_heads, head_dim, rotary_dim});
      }
    }
  }
  return shapes;
}

// A fused buffer of q, k and v, its parts on their own, and the way back.
template <class T>
struct Problem {
  explicit Problem(const Shape& of, int64_t shift = 0)
      : shape(of),
        width((of.heads + 2 * of.kv_heads) * of.head_dim),
        qkv(of.tokens * width, shift),
        back(of.tokens * width, shift),
        q(of.tokens * of.heads * of.head_dim, shift),
        k(of.tokens * of.kv_heads * of.head_dim, shift),
        v(of.tokens * of.kv_heads * of.head_dim, shift),
        cos(kPositions * of.rotary_dim / 2),
        sin(kPositions * of.rotary_dim / 2) {
    qkv.Fill(1, 3.0F);
    for (int64_t i = 0; i < cos.size(); ++i) {
      const double angle = 0.7 * static_cast<double>(i + 1);
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
    for (int64_t token = 0; token < of.tokens; ++token) {
      positions.push_back((token * 5 + 2) % kPositions);
    }
  }
  RopeArgs<T> Args(bool implicit) const {
    RopeArgs<T> args;
    args.form = shape.form;
    args.tokens = shape.tokens;
    args.sequence = 4;  // The buffer is more than one sequence.
    args.head_dim = shape.head_dim;
    args.rotary_dim = shape.rotary_dim;
    args.cos = cos.get();
    args.sin = sin.get();
    args.positions = implicit ? nullptr : positions.data();
    return args;
  }
  // The fused buffer to its parts.
  RopeArgs<T> Apart(bool implicit) {
    RopeArgs<T> args = Args(implicit);
    T* const outs[] = {q.get(), k.get(), v.get()};
    int64_t first = 0;
    for (int part = 0; part < 3; ++part) {
      const int64_t heads = part == 0 ? shape.heads : shape.kv_heads;
      args.parts[part] = {.heads = heads,
                          .rotate = part < 2,
                          .in = qkv.get() + first,
                          .out = outs[part],
                          .in_stride = width,
                          .out_stride = heads * shape.head_dim};
      first += heads * shape.head_dim;
    }
    return args;
  }
  // The parts to a fused buffer, turned back.
  RopeArgs<T> Together(bool implicit) {
    RopeArgs<T> args = Apart(implicit);
    args.inverse = true;
    T* const ins[] = {q.get(), k.get(), v.get()};
    for (int part = 0; part < 3; ++part) {
      RopeHeads<T>& heads = args.parts[part];
      heads = {.heads = heads.heads,
               .rotate = heads.rotate,
               .in = ins[part],
               .out = back.get() + (heads.in - qkv.get()),
               .in_stride = heads.out_stride,
               .out_stride = width};
    }
    return args;
  }
  bool SameBits(const Problem& other) const {
    return q.SameBits(other.q) && k.SameBits(other.k) && v.SameBits(other.v) &&
           back.SameBits(other.back);
  }

  static constexpr int64_t kPositions = 11;
  Shape shape;
  int64_t width;
  Buffer<T> qkv, back, q, k, v;
  Buffer<float> cos, sin;
  std::vector<int64_t> positions;
};

// Element `i` of a head that begins at `head`, turned in fp64.
template <class T>
double Turned(const Problem<T>& p, int64_t head, int64_t token, int64_t i, bool implicit) {
  const int64_t half = p.shape.rotary_dim / 2;
  if (i >= p.shape.rotary_dim) {
    return p.qkv(head + i);
  }
  const bool halves = p.shape.form == RopeForm::kHalfSplit;
  const int64_t pair = halves ? i % half : i / 2;
  const bool second = halves ? i >= half : i % 2 == 1;
  const double a = p.qkv(head + (halves ? pair : 2 * pair));
  const double b = p.qkv(head + (halves ? pair + half : 2 * pair + 1));
  const int64_t position = implicit ? token % 4 : p.positions[static_cast<size_t>(token)];
  const double c = p.cos(position * half + pair);
  const double s = p.sin(position * half + pair);
  return second ? b * c + a * s : a * c - b * s;
}

template <class T>
void ExpectTurned(const Problem<T>& p, bool implicit) {
  const Buffer<T>* const outs[] = {&p.q, &p.k, &p.v};
  int64_t first = 0;
  for (int part = 0; part < 3; ++part) {
    const int64_t heads = part == 0 ? p.shape.heads : p.shape.kv_heads;
    for (int64_t token = 0; token < p.shape.tokens; ++token) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t i = 0; i < p.shape.head_dim; ++i) {
          const int64_t at = token * p.width + first + head * p.shape.head_dim;
          const double expected =
              part < 2 ? Turned(p, at, token, i, implicit) : double{p.qkv(at + i)};
          const float got = (*outs[part])((token * heads + head) * p.shape.head_dim + i);
          // Two products of values up to 3 and a sum in fp32, then one rounding to T.
          ASSERT_NEAR(got, expected, testing::HalfUlp<T>(expected) * 1.001 + 3 * 0x1p-23)
              << "part " << part << " token " << token << " head " << head << " element " << i;
        }
      }
    }
    first += heads * p.shape.head_dim;
  }
}

template <class T>
class Rope : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16>;
TYPED_TEST_SUITE(Rope, Types);

TYPED_TEST(Rope, TurnsEveryPairOfQAndKAndCopiesV) {
  EachVariant([](SimdLevel) {
    for (const Shape& shape : Shapes()) {
      for (const bool implicit : {false, true}) {
        Problem<TypeParam> p(shape, implicit ? 1 : 0);
        RopeCpu(p.Apart(implicit), SerialFor);
        ExpectTurned(p, implicit);
        ASSERT_TRUE(p.q.GuardIntact() && p.k.GuardIntact() && p.v.GuardIntact());
        if (::testing::Test::HasFatalFailure()) {
          FAIL() << "head_dim " << shape.head_dim << " rotary_dim " << shape.rotary_dim
                 << (shape.form == RopeForm::kHalfSplit ? " half-split" : " interleaved");
        }
      }
    }
  });
}

TYPED_TEST(Rope, TheInverseTurnsBack) {
  for (const Shape& shape : Shapes()) {
    Problem<TypeParam> p(shape);
    RopeCpu(p.Apart(false), SerialFor);
    RopeCpu(p.Together(false), SerialFor);
    ASSERT_TRUE(p.back.GuardIntact());
    for (int64_t i = 0; i < p.qkv.size(); ++i) {
      // cos^2 + sin^2 is 1 to an ulp; what a bf16 lost on the way stays lost: twice half an ulp of
      // values up to 4.3.
      ASSERT_NEAR(p.back(i), p.qkv(i), sizeof(TypeParam) == 4 ? 2e-6 : 0.05);
    }
  }
}

TYPED_TEST(Rope, GivesTheSameBitsInEveryVariantSplitAndInPlace) {
  for (Shape shape : Shapes()) {
    shape.tokens = 41;
    SetVariantForTesting(SimdLevel::kScalar);
    Problem<TypeParam> oracle(shape);
    RopeCpu(oracle.Apart(false), SerialFor);
    RopeCpu(oracle.Together(false), SerialFor);
    EachVariant([&](SimdLevel) {
      for (const testing::Split& split : {testing::Splits()[1], testing::Splits()[3]}) {
        Problem<TypeParam> other(shape, 3);
        RopeCpu(other.Apart(false), split);
        RopeCpu(other.Together(false), split);
        ASSERT_TRUE(other.SameBits(oracle)) << split.threads << " threads";
      }
      Problem<TypeParam> p(shape);
      RopeArgs<TypeParam> args = p.Apart(false);
      for (RopeHeads<TypeParam>& part : args.parts) {
        part.out = const_cast<TypeParam*>(part.in);
        part.out_stride = part.in_stride;
      }
      RopeCpu(args, SerialFor);
      for (int64_t token = 0; token < shape.tokens; ++token) {
        const int64_t row = shape.heads * shape.head_dim;
        ASSERT_TRUE(testing::SameBytes(p.qkv.get() + token * p.width, oracle.q.get() + token * row,
                                       static_cast<size_t>(row) * sizeof(TypeParam)));
      }
    });
  }
}

TYPED_TEST(Rope, WritesPastTheCachesTheSameBits) {
  for (const RopeForm form : {RopeForm::kHalfSplit, RopeForm::kInterleaved}) {
    const Shape large{form, 9000, 8, 2, 128, 128};
    const Shape small{form, 4, 8, 2, 128, 128};
    EachVariant([&](SimdLevel level) {
      if (level == SimdLevel::kScalar) {
        return;  // It has no such stores.
      }
      // 64 bytes alignment lets every store stream, one element more lets none.
      for (const int64_t shift : {0, 1}) {
        Problem<TypeParam> many(large, shift);
        RopeCpu(many.Apart(true), SerialFor);
        Problem<TypeParam> few(small);
        const int64_t from = 8996;  // A multiple of the sequence: the same positions.
        std::copy_n(many.qkv.get() + from * many.width, 4 * many.width, few.qkv.get());
        RopeCpu(few.Apart(true), SerialFor);
        const int64_t row = 8 * 128;
        EXPECT_TRUE(testing::SameBytes(few.q.get(), many.q.get() + from * row,
                                       4 * static_cast<size_t>(row) * sizeof(TypeParam)));
      }
    });
  }
}

// The pieces of CUDA threads on the CPU: every element is taken once, by a piece of its own kind.
TEST(RopePieces, CoverEveryElementOfEveryPartOnce) {
  for (const Shape& shape : Shapes()) {
    for (const int lanes : {2, 8}) {
      Problem<float> p(shape);
      const RopeArgs<float> args = p.Apart(false);
      std::vector<std::vector<int>> taken(3);
      for (int part = 0; part < 3; ++part) {
        taken[static_cast<size_t>(part)].resize(
            static_cast<size_t>(args.parts[part].heads * shape.head_dim));
      }
      const int64_t items = RopeItemsOfAToken(args, lanes);
      for (int64_t item = 0; item < items; ++item) {
        const RopePlace place = RopePlaceOf(args, item, lanes);
        ASSERT_LT(place.part, 3);
        ASSERT_LT(place.head, args.parts[place.part].heads);
        const int64_t limit = RopePieceLimit(args, place);
        ASSERT_LT(place.element, limit) << "an empty piece";
        ASSERT_TRUE(args.parts[place.part].rotate || !place.rotated);
        for (int64_t i = place.element; i < std::min(place.element + lanes, limit); ++i) {
          const auto at = static_cast<size_t>(place.head * shape.head_dim + i);
          auto& part = taken[static_cast<size_t>(place.part)];
          ++part[at];
          if (place.rotated && shape.form == RopeForm::kHalfSplit) {
            ++part[at + static_cast<size_t>(shape.rotary_dim / 2)];
          }
        }
      }
      for (const std::vector<int>& part : taken) {
        EXPECT_TRUE(std::all_of(part.begin(), part.end(), [](int count) { return count == 1; }))
            << "head_dim " << shape.head_dim << " rotary_dim " << shape.rotary_dim << " lanes "
            << lanes;
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::kernels::rope_test
