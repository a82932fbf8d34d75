#include "runtime/plan/device_peaks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace dtrain::plan::device_peaks_test {
namespace {

using ::testing::HasSubstr;

TEST(DevicePeaks, AreDense) {
  const auto h100 = FindDevicePeak("NVIDIA H100 80GB HBM3", PeakType::kBFloat16);
  ASSERT_TRUE(h100.ok());
  EXPECT_DOUBLE_EQ(h100->tflops(PeakType::kBFloat16), 989.4);  // 1,979 is with sparsity.
  EXPECT_DOUBLE_EQ(h100->tflops(PeakType::kFloat8), 1978.9);
  const auto pcie = FindDevicePeak("NVIDIA H100 PCIe", PeakType::kBFloat16);
  ASSERT_TRUE(pcie.ok());
  EXPECT_DOUBLE_EQ(pcie->tflops(PeakType::kBFloat16), 756.4);
}

// Datasheets of these print twice as much, "with sparsity", or beside it.
TEST(DevicePeaks, NamesAreThoseOfTheDriverAndFiguresDense) {
  const struct {
    const char* device;
    double bf16;
    double fp8;
  } cards[] = {{"NVIDIA A10G", 70, 0},
               {"NVIDIA A800-SXM4-80GB", 312, 0},
               {"NVIDIA H800", 989.4, 1978.9},
               {"NVIDIA H20", 148, 296},
               {"NVIDIA GH200 144G HBM3e", 989.4, 1978.9},
               {"NVIDIA GB200", 2500, 5000},
               {"NVIDIA B300 SXM6 AC", 2250, 4500},
               {"NVIDIA GB300", 2500, 5000},
               {"NVIDIA L40", 181.05, 362},
               {"NVIDIA GeForce RTX 5090", 209.5, 419}};
  for (const auto& [device, bf16, fp8] : cards) {
    EXPECT_DOUBLE_EQ(KnownPeakFlops(device, PeakType::kBFloat16), bf16 * 1e12) << device;
    EXPECT_DOUBLE_EQ(KnownPeakFlops(device, PeakType::kFloat8), fp8 * 1e12) << device;
  }
  EXPECT_EQ(KnownPeakFlops("NVIDIA H20 MIG 1g.12gb", PeakType::kBFloat16), 0);
}

TEST(DevicePeaks, RowsAreNamedOnceSourcedAndInProportion) {
  std::set<std::string> names;
  for (const DevicePeak& row : DevicePeaks()) {
    EXPECT_TRUE(names.insert(row.device).second) << row.device;
    EXPECT_GT(std::string(row.source).size(), 20U) << row.device;
    EXPECT_GT(row.bf16_tflops, row.fp32_tflops) << row.device;
    if (row.fp8_tflops > 0) {  // Twice bf16, as every vendor's units are built.
      EXPECT_NEAR(row.fp8_tflops / row.bf16_tflops, 2, 0.03) << row.device;
    }
  }
}

TEST(DevicePeaks, AnUnknownDeviceIsAskedFor) {
  for (const char* const name : {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA X9000", ""}) {
    const auto missing = FindDevicePeak(name, PeakType::kBFloat16);
    EXPECT_EQ(missing.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(missing.status().message()), HasSubstr("--peak-tflops"));
  }
}

TEST(DevicePeaks, ATypeThatADeviceLacksIsNamed) {
  const auto missing = FindDevicePeak("NVIDIA A100-SXM4-80GB", PeakType::kFloat8);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("no fp8 matrix units"));
}

}  // namespace
}  // namespace dtrain::plan::device_peaks_test
