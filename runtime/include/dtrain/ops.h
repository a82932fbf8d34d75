// Fused operations with autograd, for models that want them. Inputs the kernels do not cover
// (types, devices, layouts) fall back to ATen with the same result to rounding.
//
// Thread-safe. fp32 and bf16, contiguous tensors take the fused path: sums and math in fp32, each
// result rounded once, the same bits on every run. Tensors of a GPU take the CUDA kernels, on
// LibTorch's current stream and without waiting for it, where the CUDA plugin is there. They work
// with ZeRO stage 3 and inside dtrain::Recompute; they cannot be differentiated twice. A shape or
// type that no path takes throws c10::Error with the shapes.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "dtrain/loss.h"

namespace dtrain::ops {

// ---- Normalisation over the last dimension; x [..., hidden], weight and bias [hidden] ----

// y = x / sqrt(mean(x^2) + eps) * weight. (Zhang & Sennrich 2019, arXiv 1910.07467.)
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// y = (x - mean) / sqrt(variance + eps) * weight + bias; the bias may be undefined. (Ba et al.
// 2016, arXiv 1607.06450.)
at::Tensor LayerNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     double eps);

// The two results of AddRmsNorm and AddLayerNorm.
struct NormOfSum {
  at::Tensor y;    // The norm of the sum.
  at::Tensor sum;  // x + residual, rounded to their type: the next residual.
};

// The norm of x + residual, both of one shape. One pass over memory each way: backward takes the
// gradients of both results and gives x and residual the same tensor.
NormOfSum AddRmsNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                     double eps);
// The same with LayerNorm; the bias may be undefined.
NormOfSum AddLayerNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                       const at::Tensor& bias, double eps);

// ---- Activations, element by element ----

// Gaussian error linear unit (Hendrycks & Gimpel 2016, arXiv 1606.08415): x P(N(0, 1) < x), or with
// the tanh of GPT-2 ("gelu_new", "gelu_pytorch_tanh").
enum class GeluForm { kExact, kTanh };
// Gives a tensor of x's shape and type, by the form that is asked for.
at::Tensor Gelu(const at::Tensor& x, GeluForm form);

// Gated linear units (Shazeer 2020, arXiv 2002.05202): act(gate) * up, where act is silu or gelu.
// gate and up have one shape; gate_up [..., 2 hidden] holds both, gate first, as one projection
// gives them, and the result is [..., hidden].
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);
// SwiGlu of the two halves of gate_up's last dimension.
at::Tensor SwiGlu(const at::Tensor& gate_up);
// Multiplies Gelu(gate, form) by up.
at::Tensor GeGlu(const at::Tensor& gate, const at::Tensor& up, GeluForm form);
// GeGlu of the two halves of gate_up's last dimension.
at::Tensor GeGlu(const at::Tensor& gate_up, GeluForm form);

// ---- Linear layers ----

// Several linear layers of one input side by side: x [..., in], weights [out_i, in], biases none or
// one [out_i] each; the result is [..., sum of out_i], as SwiGlu and RopeQkv take it. Weights that
// lie one after the other in memory take one product forward and two backward in place of one
// and two each. An engine's flat parameters lie in the reverse order of registration: register
// what comes first last. Frozen ones are flat at ZeRO stage 3 alone; elsewhere each takes its own.
at::Tensor MergedLinear(const at::Tensor& x, at::TensorList weights, at::TensorList biases = {});

// x weight + bias of x [..., in], weight [in, out] as GPT-2's files have it, and bias [out] or
// undefined.
at::Tensor TransposedLinear(const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias = {});

// GPT-2's MLP: Gelu(x up + biases[0], GeluForm::kTanh) down + biases[1] of x [..., in], up
// [in, inner], down [inner, out] and biases {[inner], [out]} or none.
at::Tensor GeluMlp(const at::Tensor& x, const at::Tensor& up, const at::Tensor& down,
                   at::TensorList biases = {});

// ---- Rotary positions (Su et al. 2021, arXiv 2104.09864) ----

// cos and sin of position x inverse frequency, fp32 [positions, rotary_dim / 2] each.
struct RopeTable {
  at::Tensor cos;  // Cosines of the angles.
  at::Tensor sin;  // Sines of the angles.
};

// Inverse frequencies theta^(-2i / rotary_dim), i < rotary_dim / 2; angles in fp64.
RopeTable MakeRopeTable(int64_t positions, int64_t rotary_dim, double theta);
// For scaled frequencies; inverse_frequencies is fp64 [rotary_dim / 2].
RopeTable MakeRopeTable(int64_t positions, const at::Tensor& inverse_frequencies);

// The elements of a head that make pair i: i and i + rotary_dim / 2 (Llama, Qwen, GPT-NeoX), or 2i
// and 2i + 1 (GPT-J).
enum class RopeForm { kHalfSplit, kInterleaved };

// How Rope and RopeQkv pair elements and number tokens.
struct RopeOptions {
  RopeForm form = RopeForm::kHalfSplit;  // The pairs of a head.
  // int64 [batch, sequence], each in [0, the table's positions): where a token stands in its
  // document. Undefined: 0, 1, ... in every sequence.
  at::Tensor positions = {};
};

// Rotates every pair (a, b) of x [batch, sequence, heads, head_dim] to (a cos - b sin, b cos + a
// sin). Elements beyond rotary_dim pass through.
at::Tensor Rope(const at::Tensor& x, const RopeTable& table, const RopeOptions& options = {});

// q [batch, sequence, heads, head_dim], k and v [batch, sequence, kv_heads, head_dim].
struct Qkv {
  at::Tensor q, k, v;  // Queries, keys and values, of the type of the projection.
};

// The heads of a fused projection, qkv [batch, sequence, (heads + 2 kv_heads) head_dim] with all of
// q first, then k, then v; q and k rotated. v is a view of qkv; do not change it in place. Backward
// writes the gradient of qkv in one pass.
Qkv RopeQkv(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const RopeTable& table,
            const RopeOptions& options = {});

// Rows `ids` [...] (int64) of weight [vocab, width] -> [..., width]. The gradient of the weight is
// dense; each row adds its tokens' gradients in their order in fp32, without atomics: the same bits
// on every run. The row `padding_index` (-1: none) gets no gradient.
at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& weight, int64_t padding_index = -1);

// x / (1 - p) where an element is kept, else 0; x itself unless `training`. What is kept follows
// from one number drawn from the default generator of x's device (Philox from there, the same on
// every number of threads); no mask is stored.
at::Tensor Dropout(const at::Tensor& x, double p, bool training = true);

// Says what CrossEntropy and LinearCrossEntropy count, and what they add.
struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // Targets that count for nothing.
  double z_loss = 0;            // Adds z_loss * lse^2, lse = log(sum_j e^logit_j). (PaLM, 2022.)
  double label_smoothing = 0;   // In [0, 1], as torch.nn.functional.cross_entropy.
  // How many targets are not ignored, where the caller knows it; -1: they are counted, for which
  // the host waits when they are on a GPU.
  int64_t targets_counted = -1;
};

// The cross-entropy of logits [..., vocab] with targets [...] (int64), summed in fp32 or better,
// and how many targets are not ignored. Throws where a target is outside [0, vocab) (CPU tensors;
// the loss of a GPU's is NaN).
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
