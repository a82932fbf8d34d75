// The captured micro-batches of an engine (`cuda_graphs`): which graph takes which, over what
// memory, and the one line that says why none does.
//
// A graph holds forward, backward and the copies of gradients of one micro-batch. It is for batches
// of its shapes and host numbers, and for one set of gradients that the step has already: whether a
// gradient is copied or added was decided when it was captured. Reductions and what needs the other
// ranks stay outside, so that no change of the group touches it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "dtrain/config.h"
#include "dtrain/graph_inputs.h"
#include "runtime/device/device.h"
#include "runtime/gradients/bucket_marks.h"

namespace dtrain {

// By parameter: whether its gradient of the step under way is in place.
using GradientsInPlace = std::vector<uint8_t>;

struct MicroStepGraph {
  std::vector<at::Tensor> inputs;  // At fixed addresses, on the device.
  std::vector<int64_t> numbers;
  GradientsInPlace before;
  GradientsInPlace after;             // The gradients in place behind a launch.
  BucketMarks marks;                  // Recorded by the graph, which is dropped before them.
  std::vector<bool> buffers;          // The module's, to which it writes.
  std::unique_ptr<TensorGraph> work;  // Null: not captured yet.
  int64_t count = 0;                  // The loss's count.
  int64_t activations = 0;            // Bytes that forward left.

  bool IsFor(const GraphInputs& batch, const GradientsInPlace& in_place) const;
  // Copies the batch to `inputs`, which take its tensors' places.
  void Load(const GraphInputs& batch) const;
};

class StepGraphs {
 public:
  // Steps that an engine takes eagerly first: the first one's order decides the buckets.
  static constexpr int kWarmUpSteps = 2;
  // Each holds the memory of a forward and backward; a run of more shapes goes on eagerly.
  static constexpr size_t kGraphsMax = 8;

  // REQUIRES: `device` is a GPU and outlives this object.
  explicit StepGraphs(const Device& device) : device_(device) {}

  // A step has ended well.
  void EndStep() { ++steps_; }
  bool warm() const { return steps_ >= kWarmUpSteps; }
  // Whether micro-batches still are, or may become, graphs.
  bool active() const { return active_; }
  // The graph for a micro-batch, captured or to be captured now. Null: this one runs eagerly.
  MicroStepGraph* For(const GraphInputs& batch, const GradientsInPlace& in_place);
  // All go on eagerly from here. Says why in one line.
  void Refuse(const std::string& reason);
  size_t captured() const;

 private:
  const Device& device_;
  std::vector<std::unique_ptr<MicroStepGraph>> graphs_;
  int steps_ = 0;
  bool active_ = true;
};

// Why no micro-batch of such a run can be a graph; "": nothing speaks against it. Pure.
std::string WhyNoGraphs(const Config& config, bool on_host);

}  // namespace dtrain
