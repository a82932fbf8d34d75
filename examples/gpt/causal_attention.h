// Causal attention with grouped queries, through LibTorch's scaled dot-product kernels.
//
// The kernel is the configuration's choice, not a guess: "flash" is LibTorch's tiled kernel on the
// CPU and flash attention on CUDA, "cudnn" is cuDNN's (CUDA only), "math" writes the scores out.
// "auto" leaves the choice to LibTorch (flash, where it can). A kernel that cannot take the tensors
// throws, saying why; nothing falls back silently. Packed documents are one call where flash
// attention takes them so (document_attention.h), else one call each. Thread-safe.
#pragma once

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"

enum class AttentionBackend { kAuto, kFlash, kCudnn, kMath };

// By the names of model.attention_backend.
const std::map<std::string, AttentionBackend>& AttentionBackends();

struct AttentionCall {
  AttentionBackend backend = AttentionBackend::kAuto;
  double dropout = 0;  // Share of attention weights dropped; the CPU's flash kernel takes none.
  // Documents packed into the batch, in tokens, one after the other through all rows; none crosses
  // the end of a row. Empty: every row is one document.
  absl::Span<const int64_t> document_lengths = {};
  // DocumentOffsets of the same documents, on the tensors' GPU; undefined: one call each.
  at::Tensor document_offsets = {};
};

// q [batch, sequence, heads, head_dim], k and v [batch, sequence, kv_heads, head_dim] of one type
// -> [batch, sequence, heads * head_dim]. Query head h reads key head h * kv_heads / heads. A token
// attends to itself and what precedes it in its document; scores are scaled by 1/sqrt(head_dim).
// REQUIRES: heads is a multiple of kv_heads; the lengths add up to batch * sequence.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionCall& call);

// The attention of the last token of each row to all of them: q [batch, 1, heads, head_dim], keys
// and values [batch, kv_heads, tokens, head_dim] -> [batch, 1, heads * head_dim]. LibTorch chooses
// the kernel. REQUIRES: heads is a multiple of kv_heads.
at::Tensor AttentionOfLast(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values);
