#include "runtime/plan/device_peaks.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain::plan {
namespace {

constexpr char kAmpere[] = "NVIDIA A100 Tensor Core GPU datasheet (dense column)";
constexpr char kA800[] = "NVIDIA A800 Tensor Core GPU datasheet (dense column)";
constexpr char kHopper[] =
    "NVIDIA H100 Tensor Core GPU datasheet and Hopper architecture white paper (sparse figures "
    "halved)";
constexpr char kH200[] = "NVIDIA H200 Tensor Core GPU datasheet (sparse figures halved)";
constexpr char kGraceHopper[] = "NVIDIA GH200 Grace Hopper Superchip datasheet (sparse halved)";
constexpr char kA10G[] = "NVIDIA A10G Tensor Core GPU datasheet for AWS (dense column)";
constexpr char kH800[] = "NVIDIA H800 Tensor Core GPU datasheet (sparse figures halved)";
constexpr char kH20[] = "NVIDIA H20 Tensor Core GPU specification (dense figures)";
constexpr char kAda[] = "NVIDIA Ada GPU architecture white paper (dense column)";
constexpr char kL40[] = "NVIDIA L40 datasheet (dense column)";
constexpr char kBlackwell[] = "NVIDIA HGX B200 datasheet, an eighth of the board (sparse halved)";
constexpr char kGraceBlackwell[] =
    "NVIDIA GB200 NVL72 datasheet, individual GPU (sparse figures halved)";
constexpr char kBlackwellUltra[] =
    "NVIDIA HGX B300 datasheet, an eighth of the board (sparse halved)";
constexpr char kGraceBlackwellUltra[] =
    "NVIDIA GB300 NVL72 datasheet, a 72nd of the rack (sparse halved)";
constexpr char kRtxBlackwell[] =
    "NVIDIA RTX Blackwell GPU architecture white paper (dense column, fp32 accumulate)";

}  // namespace

const char* PeakTypeName(PeakType type) {
  return type == PeakType::kFloat32 ? "fp32" : type == PeakType::kBFloat16 ? "bf16" : "fp8";
}

const std::vector<DevicePeak>& DevicePeaks() {
  static const auto* const table = new std::vector<DevicePeak>{
      {"NVIDIA A100-SXM4-40GB", 19.5, 312, 0, kAmpere},
      {"NVIDIA A100-SXM4-80GB", 19.5, 312, 0, kAmpere},
      {"NVIDIA A100-PCIE-40GB", 19.5, 312, 0, kAmpere},
      {"NVIDIA A100 80GB PCIe", 19.5, 312, 0, kAmpere},
      {"NVIDIA A800-SXM4-40GB", 19.5, 312, 0, kA800},
      {"NVIDIA A800-SXM4-80GB", 19.5, 312, 0, kA800},
      {"NVIDIA A800 80GB PCIe", 19.5, 312, 0, kA800},
      {"NVIDIA A10G", 35, 70, 0, kA10G},
      {"NVIDIA H100 80GB HBM3", 66.9, 989.4, 1978.9, kHopper},
      {"NVIDIA H100 PCIe", 51.2, 756.4, 1512.8, kHopper},
      {"NVIDIA H100 NVL", 60, 835.5, 1670.5, kHopper},
      {"NVIDIA H800", 66.9, 989.4, 1978.9, kH800},
      {"NVIDIA H800 PCIe", 51.2, 756.4, 1512.8, kH800},
      {"NVIDIA H20", 44, 148, 296, kH20},
      {"NVIDIA H200", 66.9, 989.4, 1978.9, kH200},
      {"NVIDIA H200 NVL", 60, 835.5, 1670.5, kH200},
      {"NVIDIA GH200 480GB", 66.9, 989.4, 1978.9, kGraceHopper},
      {"NVIDIA GH200 144G HBM3e", 66.9, 989.4, 1978.9, kGraceHopper},
      {"NVIDIA B200", 75, 2250, 4500, kBlackwell},
      {"NVIDIA GB200", 80, 2500, 5000, kGraceBlackwell},
      {"NVIDIA B300 SXM6 AC", 75, 2250, 4500, kBlackwellUltra},
      {"NVIDIA GB300", 80, 2500, 5000, kGraceBlackwellUltra},
      {"NVIDIA L40", 90.5, 181.05, 362, kL40},
      {"NVIDIA L40S", 91.6, 362.05, 733, kAda},
      {"NVIDIA L4", 30.3, 121, 242.5, kAda},
      {"NVIDIA GeForce RTX 4090", 82.6, 165.2, 330.3, kAda},
      {"NVIDIA GeForce RTX 5090", 104.8, 209.5, 419, kRtxBlackwell},
  };
  return *table;
}

double KnownPeakFlops(absl::string_view device, PeakType type) {
  const auto peak = FindDevicePeak(device, type);
  return peak.ok() ? peak->tflops(type) * 1e12 : 0;
}

absl::StatusOr<DevicePeak> FindDevicePeak(absl::string_view device, PeakType type) {
  for (const DevicePeak& row : DevicePeaks()) {
    if (device != row.device) {
      continue;
    }
    if (row.tflops(type) == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s has no %s matrix units (%s); train in bf16 or fp32, or give "
                          "--peak-tflops",
                          device, PeakTypeName(type), row.source));
    }
    return row;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "no peak is known for \"%s\" in %s: give --peak-tflops N, the dense figure of its datasheet "
      "(half of one \"with sparsity\"); known: %s",
      device, PeakTypeName(type),
      absl::StrJoin(DevicePeaks(), ", ",
                    [](std::string* out, const DevicePeak& row) { out->append(row.device); })));
}

}  // namespace dtrain::plan
