// The divisor of MFU: the datasheet's peak of the GPU that a rank trains on.
#pragma once

#include "dtrain/config.h"
#include "runtime/device/device.h"

namespace dtrain {

// Dense FLOP/s in the type that the run multiplies in: FP8 with fp8.enabled, else that of its
// weights (fp16 has bf16's units; fp32 is not TF32). 0: the host, which has no datasheet's peak, or
// a GPU that plan/device_peaks.h does not know.
double DatasheetPeak(const Device& device, const Config& config);

}  // namespace dtrain
