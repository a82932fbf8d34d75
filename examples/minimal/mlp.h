// An ordinary LibTorch module: a next-token MLP over a window of bytes. It names no dtrain type.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <nlohmann/json.hpp>

struct MlpOptions {
  int64_t vocabulary = 256;
  int64_t hidden = 128;

  static MlpOptions FromJson(const nlohmann::ordered_json& json) {
    return {json.value("vocabulary", int64_t{256}), json.value("hidden", int64_t{128})};
  }
};

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpOptions& options)
      : embedding_(
            register_module("embedding", torch::nn::Embedding(options.vocabulary, options.hidden))),
        hidden_(register_module("hidden", torch::nn::Linear(2 * options.hidden, options.hidden))),
        head_(register_module("head", torch::nn::Linear(options.hidden, options.vocabulary))) {}

  // Mean cross-entropy of each next token, given the two tokens before it. [batch, sequence] each.
  at::Tensor Loss(const at::Tensor& tokens, const at::Tensor& targets) {
    const at::Tensor now = embedding_(tokens);
    const at::Tensor before = at::roll(now, 1, 1);
    const at::Tensor logits = head_(at::gelu(hidden_(at::cat({now, before}, -1))));
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  }

 private:
  torch::nn::Embedding embedding_;
  torch::nn::Linear hidden_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Mlp);
