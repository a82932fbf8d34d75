#include "runtime/plan/optimizer/loss_scale.h"

#include "gtest/gtest.h"

namespace dtrain::plan::loss_scale_test {
namespace {

PrecisionConfig Fp16() { return {.kind = PrecisionConfig::Kind::kFloat16}; }

TEST(LossScale, IsOneWithoutFp16AndStaysFixedWhereItIsGiven) {
  EXPECT_EQ(FirstLossScale({}).scale, 1);
  PrecisionConfig fixed = Fp16();
  fixed.loss_scale = 128;
  const LossScale first = FirstLossScale(fixed);
  EXPECT_EQ(first.scale, 128);
  EXPECT_EQ(NextLossScale(fixed, first, true), first);
  EXPECT_TRUE(IsSmallest(fixed, first)) << "there is no other";
}

TEST(LossScale, HalvesAfterHysteresisAndDoublesAfterAWindow) {
  PrecisionConfig dynamic = Fp16();
  dynamic.loss_scale_window = 3;
  LossScale scale = FirstLossScale(dynamic);
  EXPECT_EQ(scale.scale, 65536);
  scale = NextLossScale(dynamic, scale, true);
  EXPECT_EQ(scale.scale, 65536) << "the first overflow is forgiven";
  scale = NextLossScale(dynamic, scale, true);
  EXPECT_EQ(scale.scale, 32768);
  scale = NextLossScale(dynamic, scale, true);
  EXPECT_EQ(scale.scale, 16384) << "hysteresis is spent until the scale grows again";
  for (int step = 0; step < 3; ++step) {
    scale = NextLossScale(dynamic, scale, false);
    EXPECT_EQ(scale.scale, 16384) << "the window begins behind the first good step";
  }
  scale = NextLossScale(dynamic, scale, false);
  EXPECT_EQ(scale.scale, 32768);
  EXPECT_EQ(NextLossScale(dynamic, scale, true).scale, 32768) << "forgiven again";
}

TEST(LossScale, ConsecutiveHysteresisForgivesAfterEachGoodStep) {
  PrecisionConfig dynamic = Fp16();
  dynamic.consecutive_hysteresis = true;
  LossScale scale = FirstLossScale(dynamic);
  for (int i = 0; i < 5; ++i) {
    scale = NextLossScale(dynamic, NextLossScale(dynamic, scale, true), false);
    EXPECT_EQ(scale.scale, 65536);
  }
}

TEST(LossScale, StopsAtTheSmallest) {
  PrecisionConfig dynamic = Fp16();
  dynamic.initial_scale_power = 1;
  dynamic.hysteresis = 1;
  LossScale scale = FirstLossScale(dynamic);
  EXPECT_FALSE(IsSmallest(dynamic, scale));
  scale = NextLossScale(dynamic, scale, true);
  EXPECT_EQ(scale.scale, 1);
  EXPECT_TRUE(IsSmallest(dynamic, scale));
  EXPECT_EQ(NextLossScale(dynamic, scale, true).scale, 1);
}

TEST(LossScale, NeverFallsBelowTheSmallestThatIsSet) {
  PrecisionConfig dynamic = Fp16();
  dynamic.initial_scale_power = 4;
  dynamic.min_loss_scale = 12;
  LossScale scale = FirstLossScale(dynamic);
  EXPECT_EQ(scale.scale, 16);
  scale = NextLossScale(dynamic, scale, true);
  EXPECT_FALSE(IsSmallest(dynamic, scale)) << "the first overflow is forgiven";
  scale = NextLossScale(dynamic, scale, true);
  EXPECT_EQ(scale.scale, 12) << "not 8";
  EXPECT_TRUE(IsSmallest(dynamic, scale));
  scale.hysteresis = 2;
  EXPECT_FALSE(IsSmallest(dynamic, scale)) << "one more overflow is forgiven";
}

TEST(LossScale, AnOverflowBeginsTheWindowAnew) {
  PrecisionConfig dynamic = Fp16();
  dynamic.loss_scale_window = 2;
  dynamic.hysteresis = 1;
  LossScale scale = FirstLossScale(dynamic);
  // DeepSpeed: the scale doubles when a window of good steps lies behind the first one after the
  // overflow, and every window after that.
  for (const auto& [overflow, expected] :
       {std::pair(false, 65536), std::pair(true, 32768), std::pair(false, 32768),
        std::pair(false, 32768), std::pair(false, 65536), std::pair(false, 65536),
        std::pair(false, 131072)}) {
    scale = NextLossScale(dynamic, scale, overflow);
    EXPECT_EQ(scale.scale, expected) << "step " << scale.steps;
  }
  EXPECT_EQ(scale.steps, 7);
}

}  // namespace
}  // namespace dtrain::plan::loss_scale_test
