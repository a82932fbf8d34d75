// The one table of GPU peaks: dense arithmetic by device name and operand type, with its source.
// Pure; thread-safe.
//
// Datasheets that print figures "with sparsity" are halved: an MFU against a sparse peak is half
// the truth. Names are whole, as the CUDA driver gives them: an "H100 PCIe" is not an "H100", and a
// MIG slice is neither. CPUs are not in it: their peak is the GEMM rate measured in the same run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan {

enum class PeakType { kFloat32, kBFloat16, kFloat8 };  // Operands; fp32: no TF32.

struct DevicePeak {
  const char* device;  // "NVIDIA H100 80GB HBM3".
  double fp32_tflops;  // Dense; 1e12 FLOP/s.
  double bf16_tflops;
  double fp8_tflops;  // 0: the device has no FP8 matrix units.
  const char* source;

  double tflops(PeakType type) const {
    return type == PeakType::kFloat32    ? fp32_tflops
           : type == PeakType::kBFloat16 ? bf16_tflops
                                         : fp8_tflops;
  }
};

// "fp32", "bf16", "fp8".
const char* PeakTypeName(PeakType type);

const std::vector<DevicePeak>& DevicePeaks();

// Dense FLOP/s of the device in this type; 0: not in the table, or without such units.
double KnownPeakFlops(absl::string_view device, PeakType type);

// The device's row. InvalidArgument, which asks for --peak-tflops, for a device that is not in the
// table and for a type that it does not have.
absl::StatusOr<DevicePeak> FindDevicePeak(absl::string_view device, PeakType type);

}  // namespace dtrain::plan
