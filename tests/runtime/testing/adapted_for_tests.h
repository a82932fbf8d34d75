// A small model most of which is frozen, with what adapts it: for tests of frozen weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "absl/strings/str_cat.h"
#include "torch/nn/module.h"

namespace dtrain::testing {

// A chain of frozen layers with low-rank adapters beside them, a frozen table that is read at both
// ends, a small frozen norm, and frozen whole numbers, which no rank shares out.
class Adapted : public torch::nn::Module {
 public:
  static constexpr int64_t kWidth = 96;
  static constexpr int64_t kLayers = 4;
  struct Layer : torch::nn::Module {
    Layer() {
      base = Frozen(*this, "base", at::randn({kWidth, kWidth}) * 0.1);
      norm = Frozen(*this, "norm", at::rand({kWidth}) + 0.5);
      down = register_parameter("down", at::randn({8, kWidth}) * 0.1);
      up = register_parameter("up", at::randn({kWidth, 8}) * 0.1);
    }
    at::Tensor base, norm, down, up;
  };
  Adapted() {
    table = Frozen(*this, "table", at::randn({101, kWidth}) * 0.1);
    places = Frozen(*this, "places", at::arange(101));
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(absl::StrCat("layer", i), std::make_shared<Layer>()));
    }
  }
  // The sum over rows of the loss of predicting the row's own token.
  at::Tensor Loss(const at::Tensor& tokens) {
    at::Tensor h = at::embedding(table, at::index_select(places, 0, tokens));
    for (const auto& layer : layers) {
      const at::Tensor change = h.matmul(layer->down.t()).matmul(layer->up.t());
      h = h + at::tanh(at::linear(h * layer->norm, layer->base) + change);
    }
    return at::cross_entropy_loss(h.matmul(table.t()).to(at::kFloat), tokens, {},
                                  at::Reduction::Sum);
  }
  int64_t FrozenElements() const { return 101 * kWidth + kLayers * (kWidth + 1) * kWidth; }
  at::Tensor table, places;
  std::vector<std::shared_ptr<Layer>> layers;

 private:
  static at::Tensor Frozen(torch::nn::Module& module, const std::string& name, at::Tensor value) {
    return module.register_parameter(name, std::move(value), /*requires_grad=*/false);
  }
};

}  // namespace dtrain::testing
