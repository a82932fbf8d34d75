// A linear layer in place of torch::nn::Linear, with the same parameters and numbers, to which
// AddLora can add an adapter. Includes torch/nn/module.h, which models include anyway.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "dtrain/lora.h"

namespace dtrain {

// y = x W^T + b, with `weight` [out, in] and `bias` [out], initialised as torch::nn::Linear does.
class LinearImpl : public torch::nn::Module, public LowRankLayer {
 public:
  // Makes parameters of LibTorch's default type; without `with_bias` there is no bias.
  LinearImpl(int64_t in, int64_t out, bool with_bias = true);
  // x [..., in] -> [..., out].
  at::Tensor forward(const at::Tensor& x);
  // The sizes of `weight`, which is stored as [out, in].
  Shape low_rank_shape() const override { return {weight.size(1), weight.size(0)}; }

  at::Tensor weight;  // The parameter "weight" [out, in].
  at::Tensor bias;    // Undefined without one.
};
TORCH_MODULE(Linear);

}  // namespace dtrain
