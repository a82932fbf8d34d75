// Ordinary LibTorch modules: a generator of points in the plane, and a discriminator of them.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(int64_t inputs, int64_t outputs)
      : hidden_(register_module("hidden", torch::nn::Linear(inputs, 32))),
        output_(register_module("output", torch::nn::Linear(32, outputs))) {}

  at::Tensor forward(const at::Tensor& x) { return output_(at::leaky_relu(hidden_(x), 0.2)); }

 private:
  torch::nn::Linear hidden_;
  torch::nn::Linear output_;
};
TORCH_MODULE(Mlp);
