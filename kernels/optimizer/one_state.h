// Helpers that optimizer kernels with one state share. Private to this room.
#pragma once

#include "kernels/host_device.h"

namespace dtrain::kernels {

// A weight and its state, for F = a SIMD vector, or float in CUDA.
template <class F>
struct OneState {
  F p, s;
};

}  // namespace dtrain::kernels
