// The result of a loss closure.
#pragma once

#include <cstdint>
#include <utility>

#include "ATen/core/Tensor.h"

namespace dtrain {

// A loss as a sum over `count` samples (usually target tokens). The engine divides by the global
// count over ranks and micro-batches, so that padding weighs nothing and N ranks equal 1 rank.
struct Loss {
  // A scalar mean loss: in a step every micro-batch weighs the same. In an evaluation, whose last
  // micro-batches may be short, each weighs what MeanWeight of its batch (dtrain/engine.h) says.
  Loss(at::Tensor mean)  // NOLINT(google-explicit-constructor): closures return a Tensor.
      : sum(std::move(mean)), count(1), is_mean(true) {}
  // A scalar sum over `sample_count` samples, 0 or more, that count.
  Loss(at::Tensor loss_sum, int64_t sample_count) : sum(std::move(loss_sum)), count(sample_count) {}

  at::Tensor sum;        // Scalar [], floating point, part of the autograd graph.
  int64_t count;         // The samples that `sum` adds up; 1 for a mean.
  bool is_mean = false;  // Made of a mean: `sum` is one.
};

}  // namespace dtrain
