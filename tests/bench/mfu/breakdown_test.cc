#include "bench/mfu/breakdown.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtrain::bench::breakdown_test {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

double Of(const Breakdown& breakdown, Work work) {
  return breakdown.seconds[static_cast<int>(work)];
}

TEST(BreakDownThread, GivesEveryMomentToTheInnermostRange) {
  const Breakdown breakdown = BreakDownThread({{"dtrain::forward", 0, 6 * kSecond},
                                               {"aten::linear", 1 * kSecond, 4 * kSecond},
                                               {"aten::mm", 2 * kSecond, 4 * kSecond},
                                               {"aten::mul", 4 * kSecond, 5 * kSecond}},
                                              0, 8 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kGemm), 2);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kMemoryBound), 1);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kIdle), 5);  // Phases, aten::linear's own, and the end.
  EXPECT_DOUBLE_EQ(breakdown.total(), 8);
  EXPECT_DOUBLE_EQ(breakdown.share(Work::kGemm), 0.25);
}

TEST(BreakDownThread, ProductsInsideAttentionAreAttention) {
  const Breakdown breakdown =
      BreakDownThread({{"aten::scaled_dot_product_attention", 0, 4 * kSecond},
                       {"aten::bmm", kSecond, 2 * kSecond},
                       {"aten::view", 2 * kSecond, 3 * kSecond}},
                      0, 4 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kAttention), 4);
}

TEST(BreakDownThread, WhatAWaitForPeersDoesIsExposedCommunication) {
  const Breakdown breakdown = BreakDownThread(
      {{"dtrain::wait", 0, 3 * kSecond}, {"aten::add_", kSecond, 2 * kSecond}}, 0, 3 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kCommunication), 3);
}

TEST(BreakDownThread, TheUpdatesOwnKernelsAreMemoryBound) {
  const Breakdown breakdown = BreakDownThread({{"dtrain::update", 0, 2 * kSecond}}, 0, 3 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kMemoryBound), 2);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kIdle), 1);
}

TEST(BreakDownThread, RangesAreCutAtTheStepsEnds) {
  const Breakdown breakdown = BreakDownThread(
      {{"aten::mm", -kSecond, kSecond}, {"aten::mm", 3 * kSecond, 9 * kSecond}}, 0, 4 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kGemm), 2);
  EXPECT_DOUBLE_EQ(breakdown.total(), 4);
}

TEST(BreakDownThread, AnOuterRangeGoesOnAfterWhatItCalled) {
  const Breakdown breakdown = BreakDownThread(
      {{"aten::sum", 0, 5 * kSecond}, {"aten::empty", kSecond, 2 * kSecond}}, 0, 5 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kMemoryBound), 4);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kIdle), 1);
}

TEST(BreakDownThread, NothingRecordedIsIdle) {
  EXPECT_DOUBLE_EQ(Of(BreakDownThread({}, 0, kSecond), Work::kIdle), 1);
}

TEST(BreakDownDevice, CommunicationIsExposedOnlyWhereNothingElseRuns) {
  const Breakdown breakdown = BreakDownDevice(
      {{"ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 4 * kSecond},
       {"nvjet_hsh_128x256_64x4_2x1_v_bz_NNT", kSecond, 3 * kSecond},
       {"void at::native::vectorized_elementwise_kernel", 2 * kSecond, 5 * kSecond}},
      0, 6 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kGemm), 2);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kMemoryBound), 2);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kCommunication), 1);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kIdle), 1);
}

TEST(BreakDownDevice, KernelsOfOneKindThatOverlapCountOnce) {
  const Breakdown breakdown =
      BreakDownDevice({{"sm90_xmma_gemm_bf16bf16", 0, 2 * kSecond},
                       {"cutlass_80_tensorop_bf16_s16816gemm", kSecond, 3 * kSecond}},
                      0, 3 * kSecond);
  EXPECT_DOUBLE_EQ(Of(breakdown, Work::kGemm), 3);
}

TEST(WorkOfKernel, KnowsAttentionBeforeTheProductsThatItIsMadeOf) {
  EXPECT_EQ(WorkOfKernel("pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>"), Work::kAttention);
  EXPECT_EQ(WorkOfKernel("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_128x128x64"),
            Work::kAttention);
  EXPECT_EQ(WorkOfKernel("void cutlass::Kernel2<cutlass_80_wmma_tensorop_gemm>"), Work::kGemm);
  EXPECT_EQ(WorkOfKernel("void dtrain::kernels::RmsNormForward<float>"), Work::kMemoryBound);
}

TEST(KernelTotals, OfEachNameTheLongestFirst) {
  const auto totals = TotalsByName({{"a", 0, 10}, {"b", 5, 40}, {"a", 20, 30}});
  ASSERT_EQ(totals.size(), 2U);
  EXPECT_EQ(totals[0].name, "b");
  EXPECT_EQ(totals[1].calls, 2);
  EXPECT_DOUBLE_EQ(totals[1].seconds, 20e-9);
}

TEST(IdleAfterKernels, BelongsToTheKernelThatEndedLast) {
  // Between 100 and 200: nothing until 110, "a" until 130, in which "b" lies, nothing until 150,
  // "c" until 160, then nothing.
  const auto idle = IdleAfterKernels(
      {{"c", 150, 160}, {"a", 110, 130}, {"b", 115, 120}, {"before", 40, 60}, {"behind", 210, 220}},
      100, 200);
  ASSERT_EQ(idle.size(), 3U);
  EXPECT_EQ(idle[0].name, "c");
  EXPECT_DOUBLE_EQ(idle[0].seconds, 40e-9);
  EXPECT_EQ(idle[1].name, "a");
  EXPECT_DOUBLE_EQ(idle[1].seconds, 20e-9);
  EXPECT_EQ(idle[2].name, "");
  EXPECT_DOUBLE_EQ(idle[2].seconds, 10e-9);
  EXPECT_EQ(IdleAfterKernels({{"a", 0, 100}}, 10, 90).size(), 0U);
}

}  // namespace
}  // namespace dtrain::bench::breakdown_test
