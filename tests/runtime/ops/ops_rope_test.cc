// Rotary positions against complex numbers in fp64: values, gradients, and what is refused.
#include "dtrain/ops.h"
#include "tests/runtime/testing/ops_testing.h"

namespace dtrain::ops::ops_rope_test {
namespace {

using testing::Distance;
using testing::ExpectSame;
using testing::RandomLeaf;
using testing::Tensors;

constexpr double kTheta = 10'000;

// x [batch, sequence, heads, head_dim] fp64, each pair multiplied with e^(i position theta_pair).
at::Tensor Reference(const at::Tensor& x, int64_t rotary_dim, RopeForm form,
                     const at::Tensor& positions) {
  const int64_t half = rotary_dim / 2;
  const at::Tensor frequencies =
      at::pow(kTheta, at::arange(0, half, at::kDouble) / (-static_cast<double>(half)));
  const at::Tensor angles =
      (positions.to(at::kDouble).unsqueeze(-1) * frequencies).unsqueeze(2);  // [b, s, 1, half].
  const at::Tensor turn = at::complex(angles.cos(), angles.sin());
  const at::Tensor rotary = x.narrow(-1, 0, rotary_dim);
  const bool interleaved = form == RopeForm::kInterleaved;
  const at::Tensor pairs = interleaved ? rotary.unflatten(-1, {half, 2})
                                       : rotary.unflatten(-1, {2, half}).transpose(-1, -2);
  const at::Tensor turned =
      at::view_as_real(at::complex(pairs.select(-1, 0), pairs.select(-1, 1)) * turn);
  const at::Tensor flat =
      interleaved ? turned.flatten(-2) : turned.transpose(-1, -2).reshape(rotary.sizes());
  return at::cat({flat, x.narrow(-1, rotary_dim, x.size(-1) - rotary_dim)}, -1);
}

// Documents of one to five tokens.
at::Tensor DocumentPositions(int64_t batch, int64_t sequence) {
  at::Tensor positions = at::empty({batch, sequence}, at::kLong);
  int64_t at = 0;
  for (int64_t i = 0; i < positions.numel(); ++i) {
    at = i % sequence == 0 || (i * 7) % 5 == 0 ? 0 : at + 1;
    positions.view({-1})[i] = at;
  }
  return positions;
}

at::Tensor ImplicitPositions(int64_t batch, int64_t sequence) {
  return at::arange(sequence, at::kLong).expand({batch, sequence});
}

struct Shape {
  int64_t heads, kv_heads, head_dim, rotary_dim;
};
constexpr Shape kShapes[] = {{4, 4, 64, 64}, {4, 2, 32, 32},   {3, 1, 10, 10},
                             {2, 1, 80, 20}, {8, 2, 128, 128}, {1, 1, 2, 2},
                             {2, 2, 7, 6},   {5, 5, 48, 48},   {2, 2, 96, 34}};
constexpr RopeForm kForms[] = {RopeForm::kHalfSplit, RopeForm::kInterleaved};

TEST(OpsRopeTest, RotatesAsComplexNumbersDoForwardAndBackward) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Shape& shape : kShapes) {
      for (const RopeForm form : kForms) {
        for (const bool documents : {false, true}) {
          SCOPED_TRACE(shape.head_dim);
          const at::Tensor positions = documents ? DocumentPositions(2, 9) : at::Tensor();
          const RopeTable table = MakeRopeTable(9, shape.rotary_dim, kTheta);
          ExpectSame(
              [&](const Tensors& in) -> Tensors {
                return {Rope(in[0], table, {form, positions})};
              },
              [&](const Tensors& in) -> Tensors {
                return {Reference(in[0], shape.rotary_dim, form,
                                  documents ? positions : ImplicitPositions(2, 9))};
              },
              {RandomLeaf({2, 9, shape.heads, shape.head_dim}, type)},
              type == at::kBFloat16 ? 0x1p-8 : 1e-6);  // One rounding; the table's are fp32.
        }
      }
    }
  }
}

TEST(OpsRopeTest, RotatesQAndKOfAFusedProjectionAndPassesV) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Shape& shape : kShapes) {
      for (const RopeForm form : kForms) {
        for (const bool documents : {false, true}) {
          SCOPED_TRACE(shape.head_dim);
          const at::Tensor given = documents ? DocumentPositions(3, 7) : at::Tensor();
          const at::Tensor positions = documents ? given : ImplicitPositions(3, 7);
          const RopeTable table = MakeRopeTable(7, shape.rotary_dim, kTheta);
          const int64_t all = shape.heads + 2 * shape.kv_heads;
          ExpectSame(
              [&](const Tensors& in) -> Tensors {
                const Qkv out = RopeQkv(in[0], shape.heads, shape.kv_heads, table, {form, given});
                return {out.q, out.k, out.v};
              },
              [&](const Tensors& in) -> Tensors {
                const at::Tensor heads = in[0].unflatten(-1, {all, shape.head_dim});
                const at::Tensor q = heads.narrow(2, 0, shape.heads);
                const at::Tensor k = heads.narrow(2, shape.heads, shape.kv_heads);
                return {Reference(q, shape.rotary_dim, form, positions),
                        Reference(k, shape.rotary_dim, form, positions),
                        heads.narrow(2, shape.heads + shape.kv_heads, shape.kv_heads)};
              },
              {RandomLeaf({3, 7, all * shape.head_dim}, type)},
              type == at::kBFloat16 ? 0x1p-8 : 1e-6);
        }
      }
    }
  }
}

TEST(OpsRopeTest, TheGradientOfAPartOfQkvAloneIsTaken) {
  at::manual_seed(3);
  const RopeTable table = MakeRopeTable(5, 16, kTheta);
  for (int part = 0; part < 3; ++part) {
    const at::Tensor qkv = RandomLeaf({2, 5, 4 * 16}, at::kFloat);
    const Qkv out = RopeQkv(qkv, 2, 1, table);
    const at::Tensor& used = part == 0 ? out.q : part == 1 ? out.k : out.v;
    used.square().sum().backward();  // A rotation keeps lengths: the gradient is 2 qkv.
    const at::Tensor gradient = qkv.grad().unflatten(-1, {4, 16});
    const at::Tensor values = qkv.detach().unflatten(-1, {4, 16});
    const int64_t begin = part == 0 ? 0 : part + 1;
    const int64_t count = part == 0 ? 2 : 1;
    EXPECT_LT(Distance(gradient.narrow(2, begin, count), 2 * values.narrow(2, begin, count)), 1e-5);
    EXPECT_EQ(gradient.count_nonzero().item<int64_t>(), 2 * 5 * count * 16)
        << "something reached the other parts";
  }
}

TEST(OpsRopeTest, TheTableIsExactToOneRounding) {
  const RopeTable table = MakeRopeTable(4'096, 8, 500'000);
  for (const int64_t position : {0, 1, 1'000, 4'095}) {
    for (const int64_t i : {0, 1, 3}) {
      const double angle =
          static_cast<double>(position) * std::pow(500'000, -static_cast<double>(i) / 4);
      EXPECT_NEAR(table.cos[position][i].item<double>(), std::cos(angle), 6e-8);
      EXPECT_NEAR(table.sin[position][i].item<double>(), std::sin(angle), 6e-8);
    }
  }
}

void ExpectRefused(const std::function<void()>& call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(OpsRopeTest, WhatDoesNotFitIsRefusedWithItsNumbers) {
  const at::Tensor x = at::randn({2, 5, 3, 16});
  const RopeTable table = MakeRopeTable(5, 16, kTheta);
  ExpectRefused([&] { Rope(x[0], table); }, "[batch, sequence, heads, head_dim], not [5, 3, 16]");
  ExpectRefused([&] { Rope(x, MakeRopeTable(4, 16, kTheta)); }, "this one has 4");
  ExpectRefused([&] { Rope(x, MakeRopeTable(5, 18, kTheta)); }, "rotates 18");
  ExpectRefused([&] { MakeRopeTable(5, 7, kTheta); }, "an even rotary_dim, not 7");
  const at::Tensor positions = at::zeros({2, 5}, at::kLong);
  positions[1][3] = 5;
  ExpectRefused(
      [&] {
        Rope(x, table, {RopeForm::kHalfSplit, positions});
      },
      "these run from 0 to 5");
  ExpectRefused(
      [&] {
        Rope(x, table, {RopeForm::kHalfSplit, positions[0]});
      },
      "[batch, sequence] = [2, 5]");
  ExpectRefused([&] { RopeQkv(x, 2, 1, table); }, "(heads + 2 kv_heads) head_dim]");
  ExpectRefused([&] { RopeQkv(at::randn({2, 5, 64}), 3, 2, table); }, "not 3 and 2");
}

}  // namespace
}  // namespace dtrain::ops::ops_rope_test
