// A decoder-only Transformer of one of four architectures: GPT-2, Llama, Qwen2, Qwen3.
//
// Parameter names and shapes are Hugging Face's, so a checkpoint's model folder opens in
// transformers as it is, and their folders load without conversion. Not thread-safe.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <vector>

#include "gpt/gpt_options.h"
#include "gpt/layers.h"

// A table that is looked up: weight [rows, width].
class TableImpl : public torch::nn::Module {
 public:
  TableImpl(int64_t rows, int64_t width);
  // indices [...] int64 -> [..., width].
  at::Tensor forward(const at::Tensor& indices);
  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};
TORCH_MODULE(Table);

// "model." or "transformer." in the parameter names: everything but the head.
class BackboneImpl : public torch::nn::Module {
 public:
  explicit BackboneImpl(const GptOptions& options);
  // tokens and positions [batch, sequence], positions undefined: 0, 1, ... in every row
  // -> hidden states [batch, sequence, hidden].
  // `document_lengths` as dtrain::Batch has them.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions,
                     std::vector<int64_t> document_lengths);
  // The same of tokens that follow those of the cache, as GptImpl::Next has it.
  at::Tensor Continue(const at::Tensor& tokens, KeyValueCache& cache);
  const at::Tensor& embedding() const { return tokens_->weight(); }

 private:
  std::shared_ptr<const SequenceContext> MakeContext(const at::Tensor& tokens,
                                                     const at::Tensor& positions,
                                                     std::vector<int64_t> lengths);
  // Throws when there are more positions than the model has.
  void CheckPositions(int64_t positions) const;
  // `positions` as those of forward.
  at::Tensor Pass(const at::Tensor& tokens, const at::Tensor& positions,
                  const std::shared_ptr<const SequenceContext>& context);

  const GptOptions options_;
  Table tokens_{nullptr};
  Table positions_{nullptr};  // GPT-2 only.
  torch::nn::ModuleList layers_{nullptr};
  Norm norm_{nullptr};
  std::unique_ptr<RotaryTable> rotary_;  // All but GPT-2.
};
TORCH_MODULE(Backbone);

class GptImpl : public torch::nn::Module {
 public:
  // Weights are random (GPT-2's rule) unless options.random_weights is false.
  explicit GptImpl(const GptOptions& options);
  // Draws the matrices again in place; biases and norms stay as they are.
  void InitialiseWeights();
  // tokens [batch, sequence] int64 -> logits [batch, sequence, vocab]. Packed documents:
  // `positions` of the same shape, 0 where a document starts; attention stays inside a document.
  // Throws when the sequence is longer than max_position_embeddings.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions = {});
  // The logits [batch, vocab] of what follows the last of `tokens` [batch, n], which follow those
  // of the cache; they are added to it. REQUIRES: n is 1 unless the cache is empty.
  at::Tensor Next(const at::Tensor& tokens, KeyValueCache& cache);
  // Cross-entropy of the targets in nats, summed over the tokens that have one, with their number.
  // targets [batch, sequence]: the next token of each, or kIgnoredTarget if there is none. The
  // number of targets and the documents' lengths are those of dtrain::Batch.
  dtrain::Loss Loss(const at::Tensor& tokens, const at::Tensor& targets,
                    const at::Tensor& positions = {}, int64_t targets_counted = -1,
                    std::vector<int64_t> document_lengths = {});
  dtrain::Loss Loss(const dtrain::Batch& batch);

  const GptOptions& options() const { return options_; }
  // FLOPs that a token of training needs (dtrain::StrictFlopsPerToken). Packed documents count
  // without attention, since their lengths are not known here: the count is then low, never high.
  double FlopsPerToken(int64_t sequence_length, bool packed = false) const;

 private:
  const GptOptions options_;
  Backbone model_{nullptr};
  Projection lm_head_{nullptr};  // Null when tied.
};
TORCH_MODULE(Gpt);
