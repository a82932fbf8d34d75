// The model and the data of the tests of the engine on a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "absl/status/statusor.h"
#include "dtrain/recompute.h"
#include "torch/nn/module.h"

namespace dtrain::testing {

// Wide enough for several buckets and norm blocks.
class Net : public torch::nn::Module {
 public:
  // `segments`: with layers for LossOfSegments. `width`: with more, there are several buckets where
  // ranks own whole norm blocks of each.
  explicit Net(bool segments = false, int64_t width = 64) {
    a = register_parameter("a", at::randn({90, width}) * 0.1);
    b = register_parameter("b", at::randn({width, 30}) * 0.1);
    c = register_parameter("c", at::randn({30}) * 0.3);
    unused = register_parameter("unused", at::ones({5}));
    mean = register_buffer("mean", at::zeros({30}));
    for (int64_t i = 0; segments && i < kSegments; ++i) {
      layers.push_back(register_parameter("layer" + std::to_string(i), at::randn({64, 64}) * 0.1));
    }
  }
  // Adds a frozen layer, and a frozen vector.
  void AddFrozen() {
    const int64_t width = a.size(1);
    frozen = register_parameter("frozen", at::randn({width, width}) * 0.1, /*requires_grad=*/false);
    shift = register_parameter("shift", at::rand({width}), /*requires_grad=*/false);
  }
  at::Tensor Loss(const at::Tensor& x, bool with_c = true) {
    at::Tensor first = at::tanh(x.to(a.scalar_type()).matmul(a));
    if (frozen.defined()) {
      first = first + (first + shift).matmul(frozen);
    }
    const at::Tensor h = first.matmul(b);
    mean.mul_(0.9).add_(h.detach().mean(0), 0.1);
    return (with_c ? h * c : h).square().sum(at::kFloat);
  }
  // Deeper, of recomputed segments whose inputs are worth the way to a far tier.
  at::Tensor LossOfSegments(const at::Tensor& x) {
    at::Tensor h = x.to(a.scalar_type()).matmul(a).repeat({1, kCopies});
    for (const at::Tensor& layer : layers) {
      h = Recompute(
          [this, layer](const at::Tensor& in) {
            const at::Tensor inner = at::tanh(in.view({-1, 64}).matmul(layer)).view_as(in);
            return in + at::dropout(inner, 0.2, is_training());
          },
          h);
    }
    return (h.view({-1, kCopies, 64}).mean(1).matmul(b) * c).square().sum(at::kFloat);
  }
  static constexpr int64_t kSegments = 5;
  static constexpr int64_t kCopies = 16;
  at::Tensor a, b, c, unused, mean;
  at::Tensor frozen, shift;  // After AddFrozen.
  std::vector<at::Tensor> layers;
};

inline at::Tensor Rows(int64_t step, int64_t begin, int64_t end) {
  const at::Tensor row = at::arange(begin, end, at::kFloat).view({-1, 1});
  return at::sin(row * 17 + at::arange(0, 90, at::kFloat) + static_cast<double>(step) * 131);
}

// Samples of a rank: 24 a step, split evenly over ranks and micro-batches.
struct Source {
  int rank, size, accumulation;
  int64_t call = 0;
  absl::StatusOr<at::Tensor> Next() {
    const int64_t share = 24 / size / accumulation;
    const int64_t place = rank * accumulation + call % accumulation;
    return Rows(call++ / accumulation, place * share, (place + 1) * share);
  }
};

}  // namespace dtrain::testing
