// Where the gradient of a parameter may be written at once, in place of fresh memory that is then
// copied: its place in an engine's flat gradient buffer. Process-wide; thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "ATen/core/Tensor.h"

namespace dtrain::ops {

// Gives the places of some parameters.
class GradientHomes {
 public:
  virtual ~GradientHomes() = default;
  // The place of the gradient of parameter `index`, a tensor over it of the parameter's shape and
  // type, for one operation to fill and to return as that gradient; undefined where there is none
  // at the moment.
  virtual at::Tensor TakeHome(size_t index) = 0;
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

// For an operation's backward: where to write the gradient of `parameter`; undefined: where it
// likes.
at::Tensor TakeGradientHome(const at::Tensor& parameter);

}  // namespace dtrain::ops
