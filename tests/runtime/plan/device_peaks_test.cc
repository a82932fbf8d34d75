#include "runtime/plan/device_peaks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
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

// Datasheets print figures "with sparsity", which are twice as large, alone or beside the dense
// ones.
TEST(DevicePeaks, NamesAreThoseOfTheDriverAndFiguresDense) {
  const struct {
    const char* device;
    double fp32;
    double bf16;
    double fp8;
  } cards[] = {{"NVIDIA A100-SXM4-40GB", 19.5, 312, 0},
               {"NVIDIA A100-SXM4-80GB", 19.5, 312, 0},
               {"NVIDIA A100-PCIE-40GB", 19.5, 312, 0},
               {"NVIDIA A100 80GB PCIe", 19.5, 312, 0},
               {"NVIDIA A800-SXM4-40GB", 19.5, 312, 0},
               {"NVIDIA A800-SXM4-80GB", 19.5, 312, 0},
               {"NVIDIA A800 80GB PCIe", 19.5, 312, 0},
               {"NVIDIA A10G", 35, 70, 0},
               {"NVIDIA H100 80GB HBM3", 66.9, 989.4, 1978.9},
               {"NVIDIA H100 PCIe", 51.2, 756.4, 1512.8},
               {"NVIDIA H100 NVL", 60, 1671 / 2.0, 3341 / 2.0},
               {"NVIDIA H800", 66.9, 989.4, 1978.9},
               {"NVIDIA H800 PCIe", 51.2, 756.4, 1512.8},
               {"NVIDIA H20", 44, 148, 296},
               {"NVIDIA H200", 66.9, 989.4, 1978.9},
               {"NVIDIA H200 NVL", 60, 1671 / 2.0, 3341 / 2.0},
               {"NVIDIA GH200 480GB", 66.9, 989.4, 1978.9},
               {"NVIDIA GH200 144G HBM3e", 66.9, 989.4, 1978.9},
               {"NVIDIA B200", 600 / 8.0, 36000 / 8.0 / 2, 72000 / 8.0 / 2},
               {"NVIDIA GB200", 80, 5000 / 2.0, 10000 / 2.0},
               {"NVIDIA B300 SXM6 AC", 600 / 8.0, 36000 / 8.0 / 2, 72000 / 8.0 / 2},
               {"NVIDIA GB300", 80, 5000 / 2.0, 10000 / 2.0},
               {"NVIDIA L40", 90.5, 181.05, 362},
               {"NVIDIA L40S", 91.6, 362.05, 733},
               {"NVIDIA L4", 30.3, 242 / 2.0, 485 / 2.0},
               {"NVIDIA GeForce RTX 4090", 82.6, 165.2, 330.3},
               {"NVIDIA GeForce RTX 5090", 104.8, 209.5, 419}};
  EXPECT_EQ(DevicePeaks().size(), std::size(cards));
  for (const auto& [device, fp32, bf16, fp8] : cards) {
    EXPECT_DOUBLE_EQ(KnownPeakFlops(device, PeakType::kFloat32), fp32 * 1e12) << device;
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
