// GradientSync on a GPU: what the end of a step needs of it in place of waiting.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/gradients/device_squares.h"
#include "runtime/gradients/gradient_sync.h"

namespace dtrain {

class DeviceGradients;

class DeviceGradientSync : public GradientSync {
 public:
  // Queues, behind the reductions, the sum of squares of what this rank has of the reduced gradient
  // into *sum (device memory).
  virtual absl::Status QueueSquares(double* sum) = 0;
  virtual const DeviceSquares& squares() const = 0;
  // Null where gradients are not accumulated whole: stages 2 and 3.
  virtual DeviceGradients* whole() { return nullptr; }
  // Unimplemented: a host does not wait here.
  absl::StatusOr<GradientSquares> Wait() override {
    return absl::UnimplementedError("a host does not wait for gradients on a GPU");
  }
};

}  // namespace dtrain
