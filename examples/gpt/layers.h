// The parts of a Transformer layer. Parameters have the names and shapes of Hugging Face's files,
// so that a checkpoint's model folder is one of theirs as it is. Not thread-safe.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

#include "dtrain/lora.h"
#include "dtrain/ops.h"
#include "gpt/gpt_options.h"
#include "gpt/key_value_cache.h"
#include "gpt/rotary.h"

// Values that all layers of one forward pass share.
struct SequenceContext {
  dtrain::ops::RopeTable rotary;          // Undefined tensors for GPT-2.
  at::Tensor positions;                   // [batch, sequence] of packed documents, else undefined.
  std::vector<int64_t> document_lengths;  // AttentionCall's.
  at::Tensor document_offsets;            // AttentionCall's; undefined on the host.
  // Where tokens follow those of earlier passes: keys and values of all of them. Then there are no
  // documents, and it is empty before the pass or the pass has one token a row.
  KeyValueCache* cache = nullptr;
};

// The residual stream between layers, as two tensors [batch, sequence, hidden] whose sum it is. The
// next norm adds them in the pass over them that it makes anyway.
struct Residual {
  at::Tensor sum;
  at::Tensor delta;  // Undefined before the first layer.
};

// y = x / rms(x) * weight, or GPT-2's layer norm with a bias, over the last dimension.
class NormImpl : public torch::nn::Module {
 public:
  NormImpl(int64_t width, const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);
  // The norm of the stream's sum, together with that sum.
  dtrain::ops::NormOfSum OfSum(const Residual& stream);

 private:
  at::Tensor weight_;  // [width].
  at::Tensor bias_;    // [width]; undefined for RMSNorm.
  double eps_;
};
TORCH_MODULE(Norm);

struct ProjectionOptions {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = false;
  bool transposed = false;  // The weight is [in, out], as GPT-2's files have it.
  dtrain::Fp8Options fp8 = {};
};

// y = x W + b. A low-rank correction can be added to it (LoRA, Hu et al. 2021).
class ProjectionImpl : public torch::nn::Module, public dtrain::LowRankLayer {
 public:
  explicit ProjectionImpl(const ProjectionOptions& options);
  // x [..., in] -> [..., out].
  at::Tensor forward(const at::Tensor& x);

  Shape low_rank_shape() const override { return {options_.in, options_.out, options_.transposed}; }
  const ProjectionOptions& options() const { return options_; }
  const at::Tensor& weight() const { return weight_; }
  const at::Tensor& bias() const { return bias_; }  // Undefined without one.
  // Whether y = x W^T + b and nothing else: no correction, not transposed.
  bool is_linear() const { return !options_.transposed && !has_low_rank(); }
  // Whether y = x W + b and nothing else: no correction, and the products not of FP8.
  bool is_transposed() const {
    return options_.transposed && !has_low_rank() && !options_.fp8.enabled;
  }

 private:
  ProjectionOptions options_;
  at::Tensor weight_;
  at::Tensor bias_;
};
TORCH_MODULE(Projection);

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptOptions& options);
  // x [batch, sequence, hidden] -> the same shape.
  at::Tensor forward(const at::Tensor& x, const SequenceContext& context);

 private:
  dtrain::ops::Qkv Heads(const at::Tensor& x, const SequenceContext& context);

  const GptOptions options_;
  Projection qkv_{nullptr};  // GPT-2 has one matrix for the three.
  Projection q_{nullptr}, k_{nullptr}, v_{nullptr};
  Norm q_norm_{nullptr}, k_norm_{nullptr};  // Qwen3: over each head.
  Projection output_{nullptr};
};
TORCH_MODULE(Attention);

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  GptOptions::Activation activation_;
  Projection gate_{nullptr};  // SwiGLU only.
  Projection up_{nullptr}, down_{nullptr};
};
TORCH_MODULE(Mlp);

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(const GptOptions& options, int64_t index);
  Residual forward(const Residual& stream, std::shared_ptr<const SequenceContext> context);

 private:
  bool recompute_all_;
  bool recompute_mlp_;
  double dropout_;
  Norm first_norm_{nullptr}, second_norm_{nullptr};
  Attention attention_{nullptr};
  Mlp mlp_{nullptr};
};
TORCH_MODULE(Layer);
