#include "gpt/rotary.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace {

constexpr double kTwoPi = 6.283185307179586;

at::Tensor ScaleAsLlama3(const at::Tensor& frequencies, const RopeOptions& rope) {
  const auto trained = static_cast<double>(rope.original_max_position_embeddings);
  const double low = rope.low_freq_factor;
  const double high = rope.high_freq_factor;
  const at::Tensor wavelength = kTwoPi / frequencies;
  const at::Tensor slow = frequencies / rope.factor;
  const at::Tensor smooth = (trained / wavelength - low) / (high - low);
  const at::Tensor between = (1 - smooth) * slow + smooth * frequencies;
  const at::Tensor outer = at::where(wavelength > trained / low, slow, frequencies);
  const at::Tensor is_between =
      (wavelength >= trained / high).logical_and(wavelength <= trained / low);
  return at::where(is_between, between, outer);
}

}  // namespace

at::Tensor RotaryFrequencies(const RopeOptions& rope, int64_t head_dim) {
  const at::Tensor exponent =
      at::arange(0, head_dim, 2, at::kFloat) / static_cast<double>(head_dim);
  const at::Tensor frequencies = 1.0 / at::pow(rope.theta, exponent);
  switch (rope.scaling) {
    case RopeOptions::Scaling::kNone:
      return frequencies;
    case RopeOptions::Scaling::kLinear:
      return frequencies / rope.factor;
    case RopeOptions::Scaling::kLlama3:
      return ScaleAsLlama3(frequencies, rope);
  }
  return frequencies;
}

RotaryTable::RotaryTable(const GptOptions& options)
    : frequencies_(RotaryFrequencies(options.rope, options.head_dim)) {}

const dtrain::ops::RopeTable& RotaryTable::UpTo(int64_t sequence, at::Device device) {
  int64_t positions = sequence;
  for (const dtrain::ops::RopeTable& table : tables_) {
    if (table.cos.device() == device && table.cos.size(0) >= sequence) {
      return table;
    }
    if (table.cos.device() == device) {
      positions =
          std::max(positions, 2 * table.cos.size(0));  // Doubling keeps the number of tables small.
    }
  }
  const at::NoGradGuard no_grad;
  const at::Tensor angle = at::outer(at::arange(0, positions, at::kFloat), frequencies_);
  return tables_.emplace_back(
      dtrain::ops::RopeTable{angle.cos().to(device), angle.sin().to(device)});
}
