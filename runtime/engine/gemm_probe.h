// The GEMM rate of this rank's threads, measured in this run: what "GEMM fraction" divides by.
#pragma once

#include <cstdint>

#include "c10/core/ScalarType.h"
#include "runtime/device/device.h"

namespace dtrain {

// The step after which it is measured: caches are warm, and people do not look yet.
inline constexpr int64_t kGemmProbeStep = 2;

// FLOP/s of products of square matrices of this type with random operands, the best of sizes up to
// 1,024 (on a GPU 8,192, where it waits for the device); takes about 0.1 s. All ranks of a node
// should call it at the same time, as they train at the same time.
double MeasureGemmRate(const Device& device, at::ScalarType type);

}  // namespace dtrain
