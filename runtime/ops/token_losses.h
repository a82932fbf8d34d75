// Cross-entropy of some tokens' logits, with its gradient in their place: what CrossEntropy and
// LinearCrossEntropy share.
#pragma once

#include <cstdint>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "dtrain/ops.h"

namespace dtrain::ops {

// The type of sums of losses: fp64 for fp64 logits, otherwise fp32.
at::ScalarType LossType(at::ScalarType logits);

// Targets [tokens] as the kernels take them. Throws IndexError naming the first target of a CPU
// tensor that is neither in [0, vocab) nor ignored, and ValueError for a wrong type or shape.
at::Tensor CheckedTargets(const at::Tensor& targets, at::IntArrayRef shape, int64_t vocab,
                          const CrossEntropyOptions& options);

// How many of `targets` are not ignored: as the options say, else counted.
int64_t CountTargets(const at::Tensor& targets, const CrossEntropyOptions& options);

// Sums of losses of chunks, in fp64 on the host where its kernels run, else on the device.
class LossSum {
 public:
  void Add(double chunk) { host_ += chunk; }
  void Add(const at::Tensor& chunk) { device_ = device_.defined() ? device_ + chunk : chunk; }
  // A scalar of LossType(logits) on `device`.
  at::Tensor Total(at::ScalarType logits, at::Device device) const;

 private:
  double host_ = 0;
  at::Tensor device_;
};

// Adds the losses of logits [tokens, vocab] to `sum`. With `with_gradient` the logits become the
// gradient of that sum. REQUIRES: contiguous logits, targets from CheckedTargets; no autograd.
void AddTokenLosses(at::Tensor& logits, const at::Tensor& targets,
                    const CrossEntropyOptions& options, bool with_gradient, LossSum& sum);

// gradient * upstream, the loss's own gradient []; in gradient's place unless the running backward
// will want it again. Undefined where gradient is.
at::Tensor TimesUpstream(const at::Tensor& gradient, const at::Tensor& upstream);

}  // namespace dtrain::ops
