// An ordinary LibTorch module: a Transformer of one layer that predicts the next of 32 tokens.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

class DecoderImpl : public torch::nn::Module {
 public:
  // Scores of the next token at each place, [batch, sequence, 32].
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = tokens_(tokens) + places_(at::arange(tokens.size(1), tokens.options()));
    const auto heads =
        attention_(norm1_(x)).view({x.size(0), x.size(1), 3, 4, 8}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, true);
    x = x + merge_(mixed.transpose(1, 2).flatten(2));
    return head_(x + down_(at::gelu(up_(norm2_(x)))));
  }

 private:
  static torch::nn::LayerNorm Norm() {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({32}));
  }

  torch::nn::Embedding tokens_{register_module("tokens", torch::nn::Embedding(32, 32))};
  torch::nn::Embedding places_{register_module("places", torch::nn::Embedding(16, 32))};
  torch::nn::LayerNorm norm1_{register_module("norm1", Norm())};
  torch::nn::Linear attention_{register_module("attention", torch::nn::Linear(32, 96))};
  torch::nn::Linear merge_{register_module("merge", torch::nn::Linear(32, 32))};
  torch::nn::LayerNorm norm2_{register_module("norm2", Norm())};
  torch::nn::Linear up_{register_module("up", torch::nn::Linear(32, 64))};
  torch::nn::Linear down_{register_module("down", torch::nn::Linear(64, 32))};
  torch::nn::Linear head_{register_module("head", torch::nn::Linear(32, 32))};
};
TORCH_MODULE(Decoder);
