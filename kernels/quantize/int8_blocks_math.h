// The scale of a block of int8 values, for CPU and CUDA alike.
#pragma once

#include <cfloat>

#include "kernels/host_device.h"

namespace dtrain::kernels {

struct Int8Scale {
  float scale;
  float inverse;  // 0 where the block has no usable scale: every value is then 0.
};

// `largest` is the largest magnitude, NaN passed over; `poison` is 0, or NaN when an element is not
// finite.
DT_HOST_DEVICE inline Int8Scale MakeInt8Scale(float largest, float poison) {
  const float scale = largest / 127.0F + poison;
  const float inverse = 1.0F / scale;
  if (inverse <= FLT_MAX && scale > 0.0F) {
    return {scale, inverse};
  }
  return {scale == scale ? 0.0F : scale, 0.0F};
}

}  // namespace dtrain::kernels
