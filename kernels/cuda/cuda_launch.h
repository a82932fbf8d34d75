// The steps that every CUDA launch wrapper takes before and after its launch. Private to this room.
#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/cuda_stream.h"

namespace dtrain::kernels {

// REQUIRES: stream is not the default stream, which would serialise with every other.
void RequireStream(CudaStream stream);

// OK, or Internal naming `kernel` and CUDA's reason when the last launch of this thread failed.
absl::Status LaunchStatus(const char* kernel);

// Whether every pointer suits 16-byte loads; null pointers do.
template <class... T>
bool Aligned16(const T*... pointers) {
  return ((reinterpret_cast<unsigned long long>(pointers) % 16 == 0) && ...);
}

}  // namespace dtrain::kernels
