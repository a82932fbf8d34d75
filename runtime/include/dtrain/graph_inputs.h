// The parts of a batch that are the inputs of a CUDA graph of its micro-batch (`cuda_graphs` of the
// configuration). A batch that is a tensor needs nothing; another type names them by a member
// function `GraphInputs graph_inputs()`, as dtrain::Batch does. All other tensors that the closure
// reads (tables, masks, frozen weights, module buffers) must stay where they are: a graph reads the
// addresses that it was captured with, so such a tensor may be written to, but not be replaced or
// freed.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"

namespace dtrain {

// The inputs that a graph of a micro-batch takes anew each time that it is launched.
struct GraphInputs {
  // The tensors with which the loss closure computes; undefined ones too, which must stay
  // undefined. A graph reads copies at addresses of its own.
  std::vector<at::Tensor*> tensors;
  // Numbers of the host that the closure uses, or that its Loss::count follows from beside the
  // shapes. A batch with others is not taken by the same graph.
  std::vector<int64_t> numbers = {};
};

// None: the type does not say.
template <typename Batch>
std::optional<GraphInputs> GraphInputsOf(Batch& batch) {
  if constexpr (std::same_as<Batch, at::Tensor>) {
    return GraphInputs{{&batch}};
  } else if constexpr (requires {
                         { batch.graph_inputs() } -> std::same_as<GraphInputs>;
                       }) {
    return batch.graph_inputs();
  } else {
    return std::nullopt;
  }
}

}  // namespace dtrain
