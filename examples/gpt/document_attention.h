// Attention of all packed documents of a batch by one call forward and one backward: LibTorch's
// flash attention for sequences of different lengths, on a GPU. Thread-safe, except that backward
// changes a setting of the process while it queues its call, where AttendAtOnce says so.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"

// Where the documents of `positions` [batch, sequence] begin in the tokens of all rows, then, up to
// the entry `documents`, the number of tokens: int32 [documents + 1], beside the positions. A
// document begins at each 0 and with each row, as in dtrain::DocumentLengths. Entries beyond the
// documents that there are make empty ones at the end. Waits for nothing, so that a CUDA graph can
// capture it. REQUIRES: there are no more documents than `documents`.
at::Tensor DocumentOffsets(const at::Tensor& positions, int64_t documents);

struct PackedHeads {
  bool on_gpu = false;
  at::ScalarType type = at::kFloat;
  int64_t head_dim = 0;
  double dropout = 0;  // Share of attention weights dropped.
  int64_t tokens = 0;
  int64_t documents = 0;
};

// Whether AttendAtOnce takes heads like these, as far as they tell; the GPU and the build of
// LibTorch must have flash attention too.
bool FitsOneCall(const PackedHeads& heads);

// Causal attention inside each document: q [batch, sequence, heads, head_dim], k and v [batch,
// sequence, kv_heads, head_dim], offsets as DocumentOffsets gives them -> [batch, sequence, heads,
// head_dim]. Backward adds up q's gradient in any order; where the process asks for deterministic
// algorithms, if only by warnings, in one order. For that, LibTorch's setting is strict while the
// call is queued. REQUIRES: FitsOneCall, and flash attention takes the tensors.
at::Tensor AttendAtOnce(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& offsets);
