#include "gpt/layers.h"

#include <ATen/ATen.h>

#include <cmath>
#include <initializer_list>
#include <utility>

#include "dtrain/ops.h"
#include "dtrain/recompute.h"

namespace ops = dtrain::ops;

namespace {

at::Tensor Drop(const at::Tensor& x, double share, bool training) {
  return share > 0 ? ops::Dropout(x, share, training) : x;
}

// The outputs of these projections side by side, by one product; undefined if one of them is more
// than a linear layer.
at::Tensor SideBySide(const at::Tensor& x, std::initializer_list<const ProjectionImpl*> parts) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const ProjectionImpl* const part : parts) {
    if (!part->is_linear()) {
      return {};
    }
    weights.push_back(part->weight());
    if (part->bias().defined()) {
      biases.push_back(part->bias());
    }
  }
  return ops::MergedFp8Linear(x, weights, biases, (*parts.begin())->options().fp8);
}

}  // namespace

NormImpl::NormImpl(int64_t width, const GptOptions& options) : eps_(options.norm_eps) {
  weight_ = register_parameter("weight", at::ones({width}));
  if (options.is_gpt2()) {
    bias_ = register_parameter("bias", at::zeros({width}));
  }
}

at::Tensor NormImpl::forward(const at::Tensor& x) {
  return bias_.defined() ? ops::LayerNorm(x, weight_, bias_, eps_) : ops::RmsNorm(x, weight_, eps_);
}

ops::NormOfSum NormImpl::OfSum(const Residual& stream) {
  if (!stream.delta.defined()) {
    return {forward(stream.sum), stream.sum};
  }
  return bias_.defined() ? ops::AddLayerNorm(stream.delta, stream.sum, weight_, bias_, eps_)
                         : ops::AddRmsNorm(stream.delta, stream.sum, weight_, eps_);
}

ProjectionImpl::ProjectionImpl(const ProjectionOptions& options) : options_(options) {
  weight_ = register_parameter("weight", options.transposed ? at::empty({options.in, options.out})
                                                            : at::empty({options.out, options.in}));
  if (options.bias) {
    bias_ = register_parameter("bias", at::zeros({options.out}));
  }
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  at::Tensor y =
      options_.transposed && !options_.fp8.enabled
          ? ops::TransposedLinear(x, weight_, bias_)
          : ops::Fp8Linear(x, options_.transposed ? weight_.t() : weight_, bias_, options_.fp8);
  return has_low_rank() ? y + LowRank(x, is_training()) : y;
}

AttentionImpl::AttentionImpl(const GptOptions& options) : options_(options) {
  const int64_t hidden = options.hidden_size;
  const int64_t queries = options.num_attention_heads * options.head_dim;
  const int64_t keys = options.num_key_value_heads * options.head_dim;
  const auto project = [&](const char* name, int64_t in, int64_t out, bool bias) {
    return register_module(
        name, Projection(ProjectionOptions{in, out, bias, options.is_gpt2(), options.fp8}));
  };
  if (options.is_gpt2()) {
    qkv_ = project("c_attn", hidden, 3 * queries, options.attention_bias);
    output_ = project("c_proj", queries, hidden, options.output_bias);
    return;
  }
  // The engine's flat weights lie in reverse: q, k, v, as MergedLinear wants them.
  v_ = project("v_proj", hidden, keys, options.attention_bias);
  k_ = project("k_proj", hidden, keys, options.attention_bias);
  q_ = project("q_proj", hidden, queries, options.attention_bias);
  output_ = project("o_proj", queries, hidden, options.output_bias);
  if (options.has_qk_norm()) {
    q_norm_ = register_module("q_norm", Norm(options.head_dim, options));
    k_norm_ = register_module("k_norm", Norm(options.head_dim, options));
  }
}

ops::Qkv AttentionImpl::Heads(const at::Tensor& x, const SequenceContext& context) {
  const auto heads = [&](const at::Tensor& y) {
    return y.unflatten(-1, {-1, options_.head_dim});  // [batch, sequence, heads, head_dim].
  };
  if (!qkv_.is_empty()) {
    const std::vector<at::Tensor> parts = heads(qkv_(x)).chunk(3, 2);
    return {parts[0], parts[1], parts[2]};
  }
  const ops::RopeOptions rope{.positions = context.positions};
  if (q_norm_.is_empty()) {
    const at::Tensor qkv = SideBySide(x, {q_.get(), k_.get(), v_.get()});
    if (qkv.defined()) {
      return ops::RopeQkv(qkv, options_.num_attention_heads, options_.num_key_value_heads,
                          context.rotary, rope);
    }
  }
  at::Tensor q = heads(q_(x));
  at::Tensor k = heads(k_(x));
  if (!q_norm_.is_empty()) {
    q = q_norm_(q);
    k = k_norm_(k);
  }
  return {ops::Rope(q, context.rotary, rope), ops::Rope(k, context.rotary, rope), heads(v_(x))};
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const SequenceContext& context) {
  const auto [q, k, v] = Heads(x, context);
  if (context.cache != nullptr) {
    const bool is_first = context.cache->length() == 0;
    const KeysAndValues all = context.cache->Append(k, v);
    if (!is_first) {
      return output_(AttentionOfLast(q, all.keys, all.values));
    }
  }
  return output_(CausalAttention(q, k, v,
                                 {.backend = options_.attention_backend,
                                  .dropout = is_training() ? options_.attention_dropout : 0.0,
                                  .document_lengths = context.document_lengths,
                                  .document_offsets = context.document_offsets}));
}

MlpImpl::MlpImpl(const GptOptions& options) : activation_(options.activation) {
  const int64_t hidden = options.hidden_size;
  const int64_t inner = options.intermediate_size;
  const auto project = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, Projection(ProjectionOptions{in, out, options.mlp_bias,
                                                              options.is_gpt2(), options.fp8}));
  };
  if (options.is_gpt2()) {
    up_ = project("c_fc", hidden, inner);
    down_ = project("c_proj", inner, hidden);
    return;
  }
  up_ = project("up_proj", hidden, inner);  // Before the gate, as v before q.
  gate_ = project("gate_proj", hidden, inner);
  down_ = project("down_proj", inner, hidden);
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  switch (activation_) {
    case GptOptions::Activation::kSilu: {
      const at::Tensor both = SideBySide(x, {gate_.get(), up_.get()});
      return down_(both.defined() ? ops::SwiGlu(both) : ops::SwiGlu(gate_(x), up_(x)));
    }
    case GptOptions::Activation::kGeluTanh:
      if (up_->is_transposed() && down_->is_transposed()) {
        return ops::GeluMlp(x, up_->weight(), down_->weight(),
                            up_->bias().defined() ? std::vector{up_->bias(), down_->bias()}
                                                  : std::vector<at::Tensor>());
      }
      return down_(ops::Gelu(up_(x), ops::GeluForm::kTanh));
    case GptOptions::Activation::kGelu:
      return down_(ops::Gelu(up_(x), ops::GeluForm::kExact));
  }
  return {};
}

LayerImpl::LayerImpl(const GptOptions& options, int64_t index)
    : recompute_all_(options.recompute.full(index)),
      recompute_mlp_(options.recompute.selective(index)),
      dropout_(options.residual_dropout) {
  const bool gpt2 = options.is_gpt2();
  first_norm_ =
      register_module(gpt2 ? "ln_1" : "input_layernorm", Norm(options.hidden_size, options));
  attention_ = register_module(gpt2 ? "attn" : "self_attn", Attention(options));
  second_norm_ = register_module(gpt2 ? "ln_2" : "post_attention_layernorm",
                                 Norm(options.hidden_size, options));
  mlp_ = register_module("mlp", Mlp(options));
}

Residual LayerImpl::forward(const Residual& stream,
                            std::shared_ptr<const SequenceContext> context) {
  using Tensors = std::vector<at::Tensor>;
  const dtrain::Segment mlp = [this](const Tensors& inputs) -> Tensors {
    const ops::NormOfSum normed = second_norm_->OfSum(Residual{inputs[0], inputs[1]});
    return {normed.sum, Drop(mlp_(normed.y), dropout_, is_training())};
  };
  // Captured by value: a recomputed layer runs again after forward has returned.
  const dtrain::Segment layer = [this, mlp,
                                 context = std::move(context)](const Tensors& inputs) -> Tensors {
    const Residual in{inputs[0], inputs.size() > 1 ? inputs[1] : at::Tensor()};
    const ops::NormOfSum normed = first_norm_->OfSum(in);
    const at::Tensor attended = Drop(attention_(normed.y, *context), dropout_, is_training());
    const Tensors after = {normed.sum, attended};
    return recompute_mlp_ ? dtrain::RecomputeSegment(mlp, after) : mlp(after);
  };
  Tensors inputs = {stream.sum};
  if (stream.delta.defined()) {
    inputs.push_back(stream.delta);
  }
  const Tensors out = recompute_all_ ? dtrain::RecomputeSegment(layer, inputs) : layer(inputs);
  return {out[0], out[1]};
}
