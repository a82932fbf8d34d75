// Bytes that tensors take where a rank trains.
#pragma once

#include <cstdint>

#include "runtime/device/device.h"

namespace dtrain {

// On the host what the C library gave out (heap_in_use.h), on a GPU what LibTorch's allocator did.
// Never waits for the device.
int64_t BytesInUse(const Device& device);

}  // namespace dtrain
