#include "gpt/gpt.h"

#include <ATen/ATen.h>
#include <torch/nn/init.h>

#include <cmath>

#include "dtrain/ops.h"
#include "dtrain/recompute.h"

namespace {

torch::nn::Linear Projection(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

RotaryTable MakeRotary(const GptOptions& options) {
  const int64_t half = options.head_dim() / 2;
  const at::Tensor inverse_frequency =
      at::pow(options.rope_theta, at::arange(0, half, at::kDouble) / (-static_cast<double>(half)));
  const at::Tensor angle =
      at::outer(at::arange(0, options.max_position_embeddings, at::kDouble), inverse_frequency);
  const at::Tensor both = at::cat({angle, angle}, -1);
  return {both.cos().to(at::kFloat), both.sin().to(at::kFloat)};
}

// Half-split rotation (Su et al. 2021, Llama's form): x cos + rotate(x) sin with
// rotate([a, b]) = [-b, a]. x [batch, sequence, heads, head_dim].
at::Tensor Rotate(const at::Tensor& x, const RotaryTable& rotary) {
  const int64_t sequence = x.size(1);
  const at::Tensor cos = rotary.cos.narrow(0, 0, sequence).unsqueeze(1);
  const at::Tensor sin = rotary.sin.narrow(0, 0, sequence).unsqueeze(1);
  const int64_t half = x.size(-1) / 2;
  const at::Tensor rotated = at::cat({x.narrow(-1, half, half).neg(), x.narrow(-1, 0, half)}, -1);
  return (x * cos + rotated * sin).to(x.scalar_type());  // The tables are fp32.
}

}  // namespace

RmsNormImpl::RmsNormImpl(int64_t hidden, double eps) : eps_(eps) {
  weight_ = register_parameter("weight", at::ones({hidden}));
}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  return dtrain::ops::RmsNorm(x, weight_, eps_);
}

AttentionImpl::AttentionImpl(const GptOptions& options)
    : heads_(options.num_attention_heads),
      kv_heads_(options.num_key_value_heads),
      head_dim_(options.head_dim()) {
  const int64_t hidden = options.hidden_size;
  q_proj_ = register_module("q_proj", Projection(hidden, heads_ * head_dim_));
  k_proj_ = register_module("k_proj", Projection(hidden, kv_heads_ * head_dim_));
  v_proj_ = register_module("v_proj", Projection(hidden, kv_heads_ * head_dim_));
  o_proj_ = register_module("o_proj", Projection(heads_ * head_dim_, hidden));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const RotaryTable& rotary) {
  const int64_t batch = x.size(0);
  const int64_t sequence = x.size(1);
  const at::Tensor q = q_proj_(x).view({batch, sequence, heads_, head_dim_});
  const at::Tensor k = k_proj_(x).view({batch, sequence, kv_heads_, head_dim_});
  const at::Tensor v = v_proj_(x).view({batch, sequence, kv_heads_, head_dim_});
  const at::Tensor attended = at::scaled_dot_product_attention(
      Rotate(q, rotary).transpose(1, 2), Rotate(k, rotary).transpose(1, 2), v.transpose(1, 2),
      /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true, /*scale=*/std::nullopt,
      /*enable_gqa=*/kv_heads_ != heads_);
  return o_proj_(attended.transpose(1, 2).reshape({batch, sequence, heads_ * head_dim_}));
}

MlpImpl::MlpImpl(const GptOptions& options) {
  gate_proj_ =
      register_module("gate_proj", Projection(options.hidden_size, options.intermediate_size));
  up_proj_ = register_module("up_proj", Projection(options.hidden_size, options.intermediate_size));
  down_proj_ =
      register_module("down_proj", Projection(options.intermediate_size, options.hidden_size));
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return down_proj_(dtrain::ops::SwiGlu(gate_proj_(x), up_proj_(x)));
}

LayerImpl::LayerImpl(const GptOptions& options, int64_t index)
    : recompute_all_(options.recompute.full(index)),
      recompute_mlp_(options.recompute.selective(index)) {
  const int64_t hidden = options.hidden_size;
  input_layernorm_ = register_module("input_layernorm", RmsNorm(hidden, options.rms_norm_eps));
  self_attn_ = register_module("self_attn", Attention(options));
  post_attention_layernorm_ =
      register_module("post_attention_layernorm", RmsNorm(hidden, options.rms_norm_eps));
  mlp_ = register_module("mlp", Mlp(options));
}

at::Tensor LayerImpl::forward(const at::Tensor& x, const RotaryTable& rotary) {
  const auto mlp = [this](const at::Tensor& h) { return mlp_(post_attention_layernorm_(h)); };
  const auto layer = [this, mlp, &rotary](const at::Tensor& input) {
    const at::Tensor h = input + self_attn_(input_layernorm_(input), rotary);
    return h + (recompute_mlp_ ? dtrain::Recompute(mlp, h) : mlp(h));
  };
  return recompute_all_ ? dtrain::Recompute(layer, x) : layer(x);
}

BackboneImpl::BackboneImpl(const GptOptions& options) : rotary_(MakeRotary(options)) {
  embed_tokens_ = register_module("embed_tokens",
                                  torch::nn::Embedding(options.vocab_size, options.hidden_size));
  layers_ = register_module("layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layers_->push_back(Layer(options, i));
  }
  norm_ = register_module("norm", RmsNorm(options.hidden_size, options.rms_norm_eps));
}

at::Tensor BackboneImpl::forward(const at::Tensor& tokens) {
  at::Tensor h = embed_tokens_(tokens);
  for (const auto& layer : *layers_) {
    h = layer->as<Layer>()->forward(h, rotary_);
  }
  return norm_(h);
}

GptImpl::GptImpl(const GptOptions& options) : options_(options) {
  model_ = register_module("model", Backbone(options));
  if (!options.tie_word_embeddings) {
    lm_head_ = register_module("lm_head", Projection(options.hidden_size, options.vocab_size));
  }
  // Normal weights; what is added to the residual stream is scaled down with depth (GPT-2).
  const at::NoGradGuard no_grad;
  const double residual_scale =
      1.0 / std::sqrt(2.0 * static_cast<double>(options.num_hidden_layers));
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    if (item.value().dim() < 2) {
      continue;
    }
    const bool residual =
        name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
    torch::nn::init::normal_(item.value(), 0.0,
                             options.initializer_range * (residual ? residual_scale : 1.0));
  }
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  const at::Tensor h = model_(tokens);
  return lm_head_.is_empty() ? at::linear(h, model_->embedding()) : lm_head_(h);
}

dtrain::Loss GptImpl::Loss(const at::Tensor& tokens, const at::Tensor& targets) {
  const at::Tensor logits = forward(tokens).to(at::kFloat);  // A sum over many tokens.
  return {at::cross_entropy_loss(logits.view({-1, options_.vocab_size}), targets.reshape({-1}), {},
                                 at::Reduction::Sum),
          targets.numel()};
}

double GptImpl::FlopsPerToken(int64_t sequence_length) const {
  dtrain::FlopModel model;
  for (const at::Tensor& parameter : parameters()) {
    model.parameters += static_cast<double>(parameter.numel());
  }
  model.vocabulary = static_cast<double>(options_.vocab_size);
  model.hidden = static_cast<double>(options_.hidden_size);
  model.layers = static_cast<double>(options_.num_hidden_layers);
  model.query_heads = static_cast<double>(options_.num_attention_heads);
  model.head_dim = static_cast<double>(options_.head_dim());
  model.tied = options_.tie_word_embeddings;
  return dtrain::StrictFlopsPerToken(model, {.length = static_cast<double>(sequence_length)});
}
