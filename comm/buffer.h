// A span of typed memory that a collective works on. Plain values; they own nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/numeric/dtype.h"

namespace dtrain::comm {

enum class DeviceKind : uint8_t { kHost, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int index = 0;
};

struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;  // A multiple of DTypeBytes(dtype).
  DType dtype = DType::kFloat32;
  Device device = {};

  size_t count() const { return bytes / DTypeBytes(dtype); }
};

inline char* BytesOf(const Buffer& buffer) { return static_cast<char*>(buffer.data); }

enum class ReduceOp : uint8_t { kSum, kAverage, kMax, kMin };

// The element type in which an fp32 buffer travels.
enum class Wire : uint8_t { kSameAsBuffer, kBFloat16, kFloat16 };

}  // namespace dtrain::comm
