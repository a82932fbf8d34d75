#include "runtime/memory/memory_in_use.h"

#include "c10/core/CachingDeviceAllocator.h"
#include "runtime/memory/heap_in_use.h"

namespace dtrain {

int64_t BytesInUse(const Device& device) {
  const at::Device place = device.tensors();
  if (place.is_cpu()) {
    return HeapBytesInUse();
  }
  using c10::CachingAllocator::StatType;
  const auto stats = at::getDeviceAllocator(place.type())->getDeviceStats(place.index());
  return stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].current;
}

}  // namespace dtrain
