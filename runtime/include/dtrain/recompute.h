// Activation checkpointing: parts of a model whose activations are not kept for backward but
// computed again there (Chen et al. 2016, arXiv 1604.06174), for a third more forward at most and a
// fraction of the memory.
//
//   h = dtrain::Recompute([&](const at::Tensor& x) { return layer->forward(x); }, h);
//
// Same bits as without it: the CPU generator is put back to where it was, so dropout repeats. A
// segment must depend on its inputs, parameters and that generator alone, and may run twice. It
// must not change module buffers (running statistics would count twice). The model chooses
// the segments, by config.activation_checkpointing().
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"

namespace dtrain {

// A part of a forward pass: tensors in, tensors out.
using Segment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// segment(inputs), of which only `inputs` are kept until backward. Without gradients (evaluation)
// it just runs. Throws what the segment throws.
std::vector<at::Tensor> RecomputeSegment(Segment segment, const std::vector<at::Tensor>& inputs);

// The same for a function of one tensor to one.
template <typename Function>
at::Tensor Recompute(Function function, const at::Tensor& input) {
  return RecomputeSegment(
      [function = std::move(function)](const std::vector<at::Tensor>& inputs) {
        return std::vector<at::Tensor>{function(inputs[0])};
      },
      {input})[0];
}

}  // namespace dtrain
