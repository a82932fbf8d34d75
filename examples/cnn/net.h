// An ordinary LibTorch module: a small convolutional network for images of 16 x 16 points.
#pragma once

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

class NetImpl : public torch::nn::Module {
 public:
  // Scores of the 4 classes, [batch, 4].
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor half = at::max_pool2d(at::relu(first_(images)), 2);
    return head_(at::max_pool2d(at::relu(second_(half)), 2).flatten(1));
  }

 private:
  static torch::nn::Conv2d Convolution(int64_t in, int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
  }

  torch::nn::Conv2d first_{register_module("first", Convolution(1, 8))};
  torch::nn::Conv2d second_{register_module("second", Convolution(8, 16))};
  torch::nn::Linear head_{register_module("head", torch::nn::Linear(16 * 4 * 4, 4))};
};
TORCH_MODULE(Net);
