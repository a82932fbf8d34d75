// The shape that the arguments of Rope and RopeQkv describe, checked once.
#pragma once

#include <cstdint>

#include "dtrain/ops.h"

namespace dtrain::ops {

struct RopeShape {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
};

// Throws c10::Error when table or positions do not fit; reads the positions if they are on the CPU.
RopeShape CheckedRopeShape(int64_t batch, int64_t sequence, int64_t head_dim,
                           const RopeTable& table, const RopeOptions& options);

// The width of a head of qkv [batch, sequence, (heads + 2 kv_heads) head_dim]; throws c10::Error
// where that is not its shape.
int64_t QkvHeadDim(const at::Tensor& qkv, int64_t heads, int64_t kv_heads);

}  // namespace dtrain::ops
