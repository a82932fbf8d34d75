// The home of a parameter's gradient: its place in an engine's flat gradient buffer. An operation's
// backward writes the gradient there itself, in place of giving autograd fresh memory that is then
// added or copied. Process-wide; thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/csrc/autograd/function_hook.h"

namespace dtrain::ops {

struct GradientHome {
  // fp32, of the parameter's shape, whatever the parameter's type; undefined: there is none.
  at::Tensor place = {};
  // It holds what earlier operations or micro-batches of the step left: add to it. Else write all.
  bool holds = false;
};

// A hook behind autograd's accumulation that is ready for undefined gradients: any other waits for
// a parameter's gradient, which then goes through autograd.
class GradientHomeHook : public torch::autograd::FunctionPostHook {};

// Gives the places of some parameters.
class GradientHomes {
 public:
  virtual ~GradientHomes() = default;
  // The place of the gradient of parameter `index`. Whoever takes it queues the gradient to it at
  // once, on the current stream, and gives autograd an undefined gradient: it is accumulated then.
  // `can_add`: a place that holds something will do.
  virtual GradientHome TakeHome(size_t index, bool can_add) = 0;
};

// While one of this class lives, operations ask `homes` for the places of `parameters`.
class GradientHomesOf {
 public:
  GradientHomesOf(const std::vector<at::Tensor>& parameters, GradientHomes& homes);
  GradientHomesOf(const GradientHomesOf&) = delete;
  GradientHomesOf& operator=(const GradientHomesOf&) = delete;
  // Leaves what another took over meanwhile.
  ~GradientHomesOf();

 private:
  const std::vector<at::Tensor> parameters_;
  const GradientHomes* const homes_;
};

// For an operation's backward, as GradientHomes::TakeHome. No place where somebody waits for this
// gradient alone: a caller of autograd's grad(), or a program's hook on the parameter.
GradientHome TakeGradientHome(const at::Tensor& parameter, bool can_add);

}  // namespace dtrain::ops
