// at::batch_norm and at::instance_norm with running statistics in fp32 beside data, weight and bias
// of 2 bytes, against the same operations in fp64.
#include "runtime/model/norm_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"

namespace dtrain::norm_statistics_test {
namespace {

constexpr int64_t kChannels = 3;
constexpr double kMomentum = 0.125;

struct Case {
  bool instance = false;
  bool training = false;
  bool affine = false;
  bool channels_last = false;
  std::vector<int64_t> shape;
};

// The results of one forward and backward. Without a weight `dweight` and `dbias` stay undefined.
struct Outcome {
  at::Tensor out, mean, variance, dx, dweight, dbias;
};

// `data` of x, weight and bias; `statistics` of the running ones.
Outcome OutcomeOf(const Case& c, at::ScalarType data, at::ScalarType statistics,
                  at::ScalarType rounded) {
  int64_t elements = 1;
  for (const int64_t size : c.shape) {
    elements *= size;
  }
  // The same numbers in each type: those that `rounded` holds.
  const auto numbers = [&](double scale, int64_t count) {
    return at::sin(at::arange(1, count + 1, at::kDouble) * scale).to(rounded).to(data);
  };
  at::Tensor x = numbers(0.7, elements).view(c.shape) * 2 + 1;
  x = x.to(rounded).to(data);
  if (c.channels_last) {
    x = x.contiguous(at::MemoryFormat::ChannelsLast);
  }
  x.requires_grad_();
  at::Tensor weight, bias;
  if (c.affine) {
    weight = numbers(1.3, kChannels).requires_grad_();
    bias = numbers(0.9, kChannels).requires_grad_();
  }
  Outcome o;
  o.mean = at::arange(1, kChannels + 1, at::kDouble).mul(0.25).to(statistics);
  o.variance = at::arange(1, kChannels + 1, at::kDouble).mul(0.5).to(statistics);
  o.out = c.instance ? at::instance_norm(x, weight, bias, o.mean, o.variance, c.training, kMomentum,
                                         1e-5, /*cudnn_enabled=*/false)
                     : at::batch_norm(x, weight, bias, o.mean, o.variance, c.training, kMomentum,
                                      1e-5, /*cudnn_enabled=*/false);
  o.out.mul(numbers(2.1, elements).view(c.shape)).sum(at::kDouble).backward();
  o.dx = x.grad();
  if (c.affine) {
    o.dweight = weight.grad();
    o.dbias = bias.grad();
  }
  return o;
}

void ExpectNear(const at::Tensor& got, const at::Tensor& exact, double relative, const char* what) {
  const at::Tensor distance = (got.to(at::kDouble) - exact).abs();
  const at::Tensor allowed = exact.abs() * relative + relative / 16;
  EXPECT_TRUE(distance.le(allowed).all().item<bool>())
      << what << " is " << got << " and not " << exact;
}

class NormStatisticsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() { TakeFp32Statistics(); }
};

INSTANTIATE_TEST_SUITE_P(Types, NormStatisticsTest, ::testing::Values(at::kBFloat16, at::kHalf));

// A result is rounded once, from fp32: by less than a unit of its last place. Gradients pass
// through roundings of their own.
TEST_P(NormStatisticsTest, LayersOfTwoBytesGiveTheRoundedNumbersOfFp64) {
  const at::ScalarType type = GetParam();
  const double unit = type == at::kBFloat16 ? std::ldexp(1, -8) : std::ldexp(1, -10);
  for (const bool instance : {false, true}) {
    for (const bool training : {false, true}) {
      for (const bool affine : {false, true}) {
        for (const int dimensions : {2, 3, 4, 5}) {  // Five stands for four, channels last.
          if (instance && dimensions == 2) {
            continue;  // It has no elements to go over.
          }
          const std::vector<int64_t> shape = dimensions == 2 ? std::vector<int64_t>{6, kChannels}
                                             : dimensions == 3
                                                 ? std::vector<int64_t>{4, kChannels, 5}
                                                 : std::vector<int64_t>{2, kChannels, 4, 5};
          const Case c{instance, training, affine, dimensions == 5, shape};
          SCOPED_TRACE(absl::StrCat(instance ? "instance" : "batch", training ? ", trains" : "",
                                    affine ? ", a weight" : "", ", dimensions ", dimensions));
          const Outcome got = OutcomeOf(c, type, at::kFloat, type);
          const Outcome exact = OutcomeOf(c, at::kDouble, at::kDouble, type);
          EXPECT_EQ(got.out.scalar_type(), type);
          EXPECT_EQ(got.mean.scalar_type(), at::kFloat);
          ExpectNear(got.out, exact.out, unit, "the result");
          ExpectNear(got.mean, exact.mean, 1e-5, "the running mean");
          ExpectNear(got.variance, exact.variance, 1e-5, "the running variance");
          ExpectNear(got.dx, exact.dx, 8 * unit, "the gradient");
          if (affine) {
            EXPECT_EQ(got.dweight.scalar_type(), type);
            ExpectNear(got.dweight, exact.dweight, 8 * unit, "the weight's gradient");
            ExpectNear(got.dbias, exact.dbias, 8 * unit, "the bias' gradient");
          }
        }
      }
    }
  }
}

// LibTorch's own calls have the bits that they had.
TEST_P(NormStatisticsTest, LayersOfOneTypeAreLibTorchs) {
  for (const bool instance : {false, true}) {
    const Case c{instance, true, true, false, {4, kChannels, 5}};
    const at::ScalarType type = GetParam();
    const Outcome all_in_two = OutcomeOf(c, type, type, type);
    EXPECT_EQ(all_in_two.mean.scalar_type(), type);
    const Outcome in_fp32 = OutcomeOf(c, at::kFloat, at::kFloat, type);
    EXPECT_EQ(in_fp32.out.scalar_type(), at::kFloat);
    ExpectNear(in_fp32.out, OutcomeOf(c, at::kDouble, at::kDouble, type).out, 1e-5, "the result");
    // The mixed form rounds what fp32 gives.
    const Outcome mixed = OutcomeOf(c, type, at::kFloat, type);
    ExpectNear(mixed.out, in_fp32.out.detach().to(at::kDouble),
               type == at::kBFloat16 ? std::ldexp(1, -8) : std::ldexp(1, -10), "the mixed result");
    EXPECT_TRUE(mixed.mean.equal(in_fp32.mean)) << mixed.mean << " and " << in_fp32.mean;
  }
}

}  // namespace
}  // namespace dtrain::norm_statistics_test
