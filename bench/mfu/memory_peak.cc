#include "bench/mfu/memory_peak.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "base/file.h"

namespace dtrain::bench {
namespace {

// VmHWM.
double ResidentPeakBytes() {
  const auto status = ReadFile("/proc/self/status");
  if (!status.ok()) {
    return 0;
  }
  const size_t at = status->find("VmHWM:");
  double kilobytes = 0;
  if (at == std::string::npos ||
      !absl::SimpleAtod(status->substr(at + 6, status->find(" kB", at) - at - 6), &kilobytes)) {
    return 0;
  }
  return 1024 * kilobytes;
}

}  // namespace

void ResetMemoryPeak(const at::Device& device) {
  if (!device.is_cpu()) {
    at::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  } else if (std::FILE* const file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);
    std::fclose(file);
  }
}

double MemoryPeakBytes(const at::Device& device, const MemoryReport& report) {
  if (device.is_cpu()) {
    return ResidentPeakBytes();
  }
  using c10::CachingAllocator::StatType;
  const auto stats = at::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const int64_t held = stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)].peak;
  return static_cast<double>(held + report.weights + report.gradients + report.optimizer);
}

}  // namespace dtrain::bench
