// A decoder-only Transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
//
// Parameter names are Hugging Face's for Llama, so a checkpoint's model folder opens in
// transformers as it is. Not thread-safe.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "gpt/gpt_options.h"

// y = x / rms(x) * weight over the last dimension.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t hidden, double eps);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;  // [hidden].
  double eps_;
};
TORCH_MODULE(RmsNorm);

// cos and sin of the rotary angles, [positions, head_dim] each (half-split form).
struct RotaryTable {
  at::Tensor cos;
  at::Tensor sin;
};

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptOptions& options);
  // x [batch, sequence, hidden] -> the same shape.
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  int64_t heads_;
  int64_t kv_heads_;
  int64_t head_dim_;
  torch::nn::Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
};
TORCH_MODULE(Attention);

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const GptOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};
TORCH_MODULE(Mlp);

class LayerImpl : public torch::nn::Module {
 public:
  LayerImpl(const GptOptions& options, int64_t index);
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  bool recompute_all_;
  bool recompute_mlp_;
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
  Attention self_attn_{nullptr};
  Mlp mlp_{nullptr};
};
TORCH_MODULE(Layer);

// "model." in the parameter names: everything but the head.
class BackboneImpl : public torch::nn::Module {
 public:
  explicit BackboneImpl(const GptOptions& options);
  // tokens [batch, sequence] -> hidden states [batch, sequence, hidden].
  at::Tensor forward(const at::Tensor& tokens);
  const at::Tensor& embedding() const { return embed_tokens_->weight; }

 private:
  torch::nn::Embedding embed_tokens_{nullptr};
  torch::nn::ModuleList layers_{nullptr};
  RmsNorm norm_{nullptr};
  RotaryTable rotary_;
};
TORCH_MODULE(Backbone);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptOptions& options);
  // tokens [batch, sequence] int64 -> logits [batch, sequence, vocab].
  at::Tensor forward(const at::Tensor& tokens);
  // Cross-entropy of the targets in nats, summed over all tokens, with their number.
  dtrain::Loss Loss(const at::Tensor& tokens, const at::Tensor& targets);

  const GptOptions& options() const { return options_; }
  // FLOPs a token of training needs (dtrain::StrictFlopsPerToken).
  double FlopsPerToken(int64_t sequence_length) const;

 private:
  GptOptions options_;
  Backbone model_{nullptr};
  torch::nn::Linear lm_head_{nullptr};  // Null when tied.
};
TORCH_MODULE(Gpt);
