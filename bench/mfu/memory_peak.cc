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

void ResetMemoryPeak(const Device& device) {
  if (!device.is_host()) {
    const at::Device place = device.tensors();
    at::getDeviceAllocator(place.type())->resetPeakStats(place.index());
  } else if (std::FILE* const file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);
    std::fclose(file);
  }
}

double MemoryPeakBytes(const Device& device) {
  if (device.is_host()) {
    return ResidentPeakBytes();
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  if (device.api().MemoryInfo(&free_bytes, &total_bytes) != comm::CudaResult::kSuccess) {
    return 0;
  }
  using c10::CachingAllocator::StatType;
  const at::Device place = device.tensors();
  const auto stats = at::getDeviceAllocator(place.type())->getDeviceStats(place.index());
  const auto& reserved = stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)];
  return static_cast<double>(total_bytes - free_bytes) +
         static_cast<double>(reserved.peak - reserved.current);
}

}  // namespace dtrain::bench
