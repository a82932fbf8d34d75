#include "bench/mfu/check_options.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace dtrain::bench {
namespace {

constexpr int64_t kDefaultSequence = 1024;

}  // namespace

absl::Status CheckOptions(const std::string& model, int64_t positions, MfuOptions& options) {
  if (options.sequence == 0) {
    options.sequence = std::min(kDefaultSequence, positions);
  }
  if (options.sequence > positions) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--seq %d is longer than the model's %d positions (%s); allowed: 1 to %d",
                        options.sequence, positions, model, positions));
  }
  if (options.dtype == "fp8" && options.device == "cpu") {
    return absl::InvalidArgumentError(
        "--dtype fp8 needs a GPU with FP8 matrix units (--device cuda); on a CPU: fp32, bf16");
  }
  if (options.bf16_states && options.dtype == "fp32") {
    return absl::InvalidArgumentError(
        "--bf16-states goes with --dtype bf16 or fp8, which keep fp32 masters of the weights; "
        "--dtype is fp32: take one of the two, or leave --bf16-states out");
  }
  return absl::OkStatus();
}

}  // namespace dtrain::bench
