#include "runtime/memory/device_peak.h"

#include "runtime/device/cuda_backend.h"
#include "runtime/plan/device_peaks.h"

namespace dtrain {
namespace {

plan::PeakType TypeOf(const Config& config) {
  if (config.fp8().enabled) {
    return plan::PeakType::kFloat8;
  }
  return config.precision().kind == PrecisionConfig::Kind::kFloat32 ? plan::PeakType::kFloat32
                                                                    : plan::PeakType::kBFloat16;
}

}  // namespace

double DatasheetPeak(const Device& device, const Config& config) {
  if (device.is_host()) {
    return 0;
  }
  const auto facts = FactsOf(device);
  return facts.ok() ? plan::KnownPeakFlops(facts->name, TypeOf(config)) : 0;
}

}  // namespace dtrain
