// The model and the program's own optimizer of tests that train by every optimizer.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "dtrain/optimizer.h"
#include "torch/nn/module.h"

namespace dtrain::testing {

// Larger than one norm block for each of three ranks, so that every rank owns parts of matrices and
// their blocks; of several buckets.
class OptimizerNet : public torch::nn::Module {
 public:
  OptimizerNet() {
    up = register_parameter("up", at::randn({144, 90}) * 0.1);
    gain = register_parameter("gain", at::randn({144}) * 0.3);
    down = register_parameter("down", at::randn({90, 144}) * 0.1);
    embed = register_parameter("embed", at::randn({7, 90}) * 0.3);
  }
  at::Tensor Loss(const at::Tensor& x) {
    const at::Tensor h = at::tanh(x.to(up.scalar_type()).matmul(embed).matmul(up.t()) * gain);
    return h.matmul(down.t()).square().sum(at::kFloat);
  }
  at::Tensor up, gain, down, embed;
};

class Halves final : public Optimizer {
 public:
  std::string name() const override { return "Halves"; }
  std::vector<std::string> states() const override { return {"sum"}; }
  void Update(const ParameterPart& part) const override {
    for (size_t i = 0; i < part.weights.size(); ++i) {
      part.states[0][i] = 0.5F * part.states[0][i] + part.gradient[i];
      part.weights[i] -= 0.01F * part.states[0][i] / static_cast<float>(part.shape.size());
    }
  }
};

}  // namespace dtrain::testing
