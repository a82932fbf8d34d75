// The place where the tests of the Transformer's training run: the fake GPU, a real one, or the
// host. A program is linked with one of training_place_{fake,gpu,host}.cc; the tests are the same
// for all.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/job/job_state.h"
#include "tests/examples/small_gpt.h"

// The work that a place can do in the time of a test, and how far its numbers may be from the
// host's.
struct TrainingScale {
  SmallGptSizes sizes;
  int64_t sequence = 0;
  int steps = 0;
  bool every_pair = true;  // Tries every architecture in every way; false: half of the pairs.
  std::vector<AttentionBackend> attention;  // Kernels to compare with "auto"; some may be refused.
  double fp32_tolerance = 0;                // A share of the losses' value.
  double bf16_tolerance = 0;
  int fp8_steps = 0;           // Steps of the loss curve.
  bool fp8_by_graphs = false;  // They are launches of graphs.
  double fp8_gap = 0;          // Between the losses that FP8 and bf16 end at, as a share.
};

// Costs of a step: calls that make the host wait for the device, and operations that take or give
// back memory. Each name is there as often as it came.
struct StepCosts {
  std::vector<std::string> waits;
  std::vector<std::string> memory;
  // Over the fakes alone: what a GPU was given to do, and of it, scales of tensors in FP8.
  int64_t launches = 0;
  int64_t fp8_scales = 0;
};

// One training's; outlives its job, model and engine. One at a time.
class TrainingPlace {
 public:
  // OK where there is one; Unavailable, said loudly, where there is no such device. Before LibTorch
  // is asked for anything.
  static absl::Status Here();
  static const TrainingScale& Scale();
  // REQUIRES: Here() is OK.
  static std::unique_ptr<TrainingPlace> Open();

  virtual ~TrainingPlace() = default;
  // Gives the job its device.
  virtual absl::Status Attach(dtrain::Job::State& state) = 0;
  // `by_graphs`: the step is launches of graphs and nothing else, among which a host that computes
  // takes no memory of its own.
  virtual absl::StatusOr<StepCosts> Watch(const std::function<absl::Status()>& step,
                                          bool by_graphs) = 0;
};
