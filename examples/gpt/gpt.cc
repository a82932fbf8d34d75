#include "gpt/gpt.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ops.h"
#include "gpt/document_attention.h"

namespace {

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

TableImpl::TableImpl(int64_t rows, int64_t width) {
  weight_ = register_parameter("weight", at::empty({rows, width}));
}

at::Tensor TableImpl::forward(const at::Tensor& indices) {
  return dtrain::ops::Embedding(indices, weight_);
}

BackboneImpl::BackboneImpl(const GptOptions& options) : options_(options) {
  const bool gpt2 = options.is_gpt2();
  const int64_t hidden = options.hidden_size;
  tokens_ = register_module(gpt2 ? "wte" : "embed_tokens", Table(options.vocab_size, hidden));
  if (gpt2) {
    positions_ = register_module("wpe", Table(options.max_position_embeddings, hidden));
  } else {
    rotary_ = std::make_unique<RotaryTable>(options);
  }
  layers_ = register_module(gpt2 ? "h" : "layers", torch::nn::ModuleList());
  for (int64_t i = 0; i < options.num_hidden_layers; ++i) {
    layers_->push_back(Layer(options, i));
  }
  norm_ = register_module(gpt2 ? "ln_f" : "norm", Norm(hidden, options));
}

std::shared_ptr<const SequenceContext> BackboneImpl::MakeContext(const at::Tensor& tokens,
                                                                 const at::Tensor& positions,
                                                                 std::vector<int64_t> lengths) {
  auto context = std::make_shared<SequenceContext>();
  if (positions.defined()) {
    context->positions = positions;
    context->document_lengths =
        lengths.empty() ? dtrain::DocumentLengths(positions) : std::move(lengths);
    if (positions.is_cuda()) {
      context->document_offsets =
          DocumentOffsets(positions, static_cast<int64_t>(context->document_lengths.size()));
    }
  }
  if (rotary_ != nullptr) {
    context->rotary = rotary_->UpTo(tokens.size(1), tokens.device());
  }
  return context;
}

void BackboneImpl::CheckPositions(int64_t positions) const {
  TORCH_CHECK(positions <= options_.max_position_embeddings, "a sequence of ", positions,
              " tokens is longer than the model's ", options_.max_position_embeddings,
              " positions (max_position_embeddings)");
}

at::Tensor BackboneImpl::forward(const at::Tensor& tokens, const at::Tensor& positions,
                                 std::vector<int64_t> document_lengths) {
  CheckPositions(tokens.size(1));
  return Pass(tokens, positions, MakeContext(tokens, positions, std::move(document_lengths)));
}

at::Tensor BackboneImpl::Continue(const at::Tensor& tokens, KeyValueCache& cache) {
  const int64_t begin = cache.length();
  const int64_t end = begin + tokens.size(1);
  TORCH_CHECK(begin == 0 || tokens.size(1) == 1, tokens.size(1),
              " tokens follow those of a cache; allowed: 1");
  CheckPositions(end);
  auto context = std::make_shared<SequenceContext>();
  context->cache = &cache;
  context->positions = at::arange(begin, end, tokens.options()).expand(tokens.sizes()).contiguous();
  if (rotary_ != nullptr) {
    context->rotary = rotary_->UpTo(end, tokens.device());
  }
  return Pass(tokens, context->positions, context);
}

at::Tensor BackboneImpl::Pass(const at::Tensor& tokens, const at::Tensor& positions,
                              const std::shared_ptr<const SequenceContext>& context) {
  at::Tensor h = tokens_(tokens);
  if (!positions_.is_empty()) {
    h = h +
        positions_(positions.defined() ? positions : at::arange(tokens.size(1), tokens.options()));
  }
  if (options_.embedding_dropout > 0) {
    h = dtrain::ops::Dropout(h, options_.embedding_dropout, is_training());
  }
  Residual stream{h, {}};
  for (const auto& layer : *layers_) {
    stream = layer->as<Layer>()->forward(stream, context);
  }
  return norm_->OfSum(stream).y;
}

GptImpl::GptImpl(const GptOptions& options) : options_(options) {
  model_ = register_module(options.is_gpt2() ? "transformer" : "model", Backbone(options));
  if (!options.tie_word_embeddings) {
    lm_head_ = register_module(
        "lm_head", Projection(ProjectionOptions{options.hidden_size, options.vocab_size}));
  }
  if (options.random_weights) {
    InitialiseWeights();
  }
}

// Draws normal weights. Those of projections into the residual stream are scaled down with depth
// (Radford et al. 2019). Biases and norms are set where they are made.
void GptImpl::InitialiseWeights() {
  const at::NoGradGuard no_grad;
  const double residual_scale =
      1.0 / std::sqrt(2.0 * static_cast<double>(options_.num_hidden_layers));
  for (const auto& item : named_parameters()) {
    if (item.value().dim() < 2) {
      continue;
    }
    const std::string& name = item.key();
    const bool residual = EndsWith(name, "o_proj.weight") || EndsWith(name, "down_proj.weight") ||
                          EndsWith(name, "c_proj.weight");
    at::Tensor weight = item.value();
    weight.normal_(0.0, options_.initializer_range * (residual ? residual_scale : 1.0));
  }
}

at::Tensor GptImpl::Next(const at::Tensor& tokens, KeyValueCache& cache) {
  const at::Tensor h = model_->Continue(tokens, cache).select(1, tokens.size(1) - 1);
  return lm_head_.is_empty() ? at::linear(h, model_->embedding()) : lm_head_(h);
}

at::Tensor GptImpl::forward(const at::Tensor& tokens, const at::Tensor& positions) {
  const at::Tensor h = model_(tokens, positions, std::vector<int64_t>());
  return lm_head_.is_empty() ? at::linear(h, model_->embedding()) : lm_head_(h);
}

dtrain::Loss GptImpl::Loss(const dtrain::Batch& batch) {
  return Loss(batch.tokens, batch.targets, batch.positions, batch.targets_counted,
              batch.document_lengths);
}

dtrain::Loss GptImpl::Loss(const at::Tensor& tokens, const at::Tensor& targets,
                           const at::Tensor& positions, int64_t targets_counted,
                           std::vector<int64_t> document_lengths) {
  const dtrain::ops::CrossEntropyOptions options{.ignore_index = dtrain::kIgnoredTarget,
                                                 .targets_counted = targets_counted};
  const at::Tensor h = model_(tokens, positions, std::move(document_lengths));
  if (lm_head_.is_empty()) {
    return dtrain::ops::LinearCrossEntropy(h, model_->embedding(), targets, options);
  }
  // A head with an adapter is more than its weight.
  return lm_head_->is_linear() && !lm_head_->bias().defined()
             ? dtrain::ops::LinearCrossEntropy(h, lm_head_->weight(), targets, options)
             : dtrain::ops::CrossEntropy(lm_head_(h), targets, options);
}

double GptImpl::FlopsPerToken(int64_t sequence_length, bool packed) const {
  return dtrain::StrictFlopsPerToken(
      options_.flop_model(),
      {.length = static_cast<double>(sequence_length), .sum_length = packed ? 1.0 : 0.0});
}
