// Fused operations with autograd, for models that want them. Inputs the kernels do not cover
// (types, devices, layouts) fall back to ATen with the same result.
//
// Thread-safe. fp32 and bf16, contiguous CPU tensors take the fused path.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "dtrain/loss.h"

namespace dtrain::ops {

// y = x / sqrt(mean(x^2, last dim) + eps) * weight. x [..., hidden], weight [hidden] -> [...,
// hidden]. (Zhang & Sennrich 2019.)
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// silu(gate) * up, element by element; both the same shape. (Shazeer 2020.)
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // Targets that count for nothing.
  double z_loss = 0;            // Adds z_loss * lse^2, lse = log(sum_j e^logit_j). (PaLM, 2022.)
  double label_smoothing = 0;   // In [0, 1], as torch.nn.functional.cross_entropy.
};

// The cross-entropy of logits [..., vocab] with targets [...] (int64), summed in fp32 or better,
// and how many targets are not ignored. Throws where a target is outside [0, vocab) (CPU tensors;
// elsewhere as LibTorch does). The count of GPU targets waits for them.
Loss CrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                  const CrossEntropyOptions& options = {});

// CrossEntropy(hidden weight^T, targets) without the logits: hidden [..., width], weight [vocab,
// width], targets [...]. Tokens are taken in chunks of `chunk_tokens` (0: so that a chunk's logits
// hold at most 16 Mi elements, 256 Mi on a GPU), and where gradients are wanted, forward computes
// them chunk by chunk while the logits are there; the weight's is added up in fp32. Beside the
// gradients themselves, memory depends on neither the tokens nor, beyond a chunk of one token, the
// vocabulary. No second derivative.
Loss LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                        const at::Tensor& targets, const CrossEntropyOptions& options = {},
                        int64_t chunk_tokens = 0);

}  // namespace dtrain::ops
