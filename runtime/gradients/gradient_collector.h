// The front end that all forms of gradient reduction share: hooks on a module's parameters collect
// the gradients of a backward, and buckets that are full are launched in one order on all ranks.
//
// WholeCollector keeps gradients whole in the flat buffer (ZeRO stages 0 and 1) and launches in a
// step's last backward. SlotCollector writes them to a slot for each bucket and drops them (stages
// 2 and 3); it launches in every backward. The owner decides what launching a bucket does and
// where a slot is; there is one for the host and one for a GPU.
//
// Hooks of CPU tensors run in the thread that calls backward, those of CUDA tensors in autograd's
// thread of the device while the other waits: one thread at a time drives a collector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "runtime/gradients/whole_gradients.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/plan/layout/launch_queue.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

class GradientCollector {
 public:
  // Launches a full bucket. After an error no other is launched, and Finish returns it.
  using Launch = std::function<absl::Status(int bucket)>;

  GradientCollector(const GradientCollector&) = delete;
  GradientCollector& operator=(const GradientCollector&) = delete;

  // Hooks call this object from Listen until StopListening, which owners call before what Launch
  // uses is gone.
  void Listen();
  void StopListening();

  // Sets the buckets and the order in which they are launched. REQUIRES: between backwards.
  void UseQueue(plan::LaunchQueue queue) { queue_ = std::move(queue); }
  plan::LaunchQueue& queue() { return queue_; }
  const plan::LaunchQueue& queue() const { return queue_; }

  // First error inside a hook: a sparse gradient, a collective that could not start.
  const absl::Status& status() const { return status_; }

 protected:
  // REQUIRES: `flat` outlives this object.
  GradientCollector(FlatParameters& flat, Launch launch)
      : flat_(flat), launch_(std::move(launch)) {}
  ~GradientCollector() { StopListening(); }

  // Autograd has accumulated into the .grad of flat.parameters()[index], or would have.
  virtual void OnGradient(size_t index) = 0;
  // Unimplemented names a parameter whose gradient comes again in a backward in which a bucket of
  // it was launched: what is added now would be lost.
  absl::Status CheckNotLaunched(size_t index) const;
  void LaunchBucket(int bucket);

  FlatParameters& flat_;
  plan::LaunchQueue queue_{{}, {}};
  absl::Status status_;

 private:
  class Hook;
  const Launch launch_;
  bool listens_ = false;
};

class WholeCollector final : public GradientCollector {
 public:
  // `taken` is called for each gradient of a step's last backward; may be null.
  WholeCollector(FlatParameters& flat, Launch launch, std::function<void(size_t)> taken = nullptr);
  ~WholeCollector() { StopListening(); }

  // Around each backward; in a step's last one buckets are launched, and a parameter without a
  // gradient gets zeros, since other ranks may have used it.
  void Begin(bool last);
  absl::Status Finish();
  // The backward was captured and launched nothing.
  void EndCaptured() { last_ = false; }
  // A step ends, well or not.
  void Release();

  WholeGradients& gradients() { return whole_; }
  std::vector<uint8_t> used() const { return whole_.in_place(); }
  bool in_last_backward() const { return last_; }

 private:
  void OnGradient(size_t index) override;

  const std::function<void(size_t)> taken_;
  WholeGradients whole_;
  bool last_ = false;
};

// Where SlotCollector writes a bucket's gradients.
class BucketSlots {
 public:
  enum class Fill { kCopy, kAdd, kZero };

  // Writes elements [at, at + elements) of the slot of `bucket`, in fp32. `gradient` is flat and of
  // the parameter's type, or undefined for kZero. A slot's gaps between parameters hold zeros.
  virtual absl::Status Write(int bucket, int64_t at, int64_t elements, const at::Tensor& gradient,
                             Fill fill) = 0;

 protected:
  ~BucketSlots() = default;
};

class SlotCollector final : public GradientCollector {
 public:
  // REQUIRES: all outlive this object.
  SlotCollector(FlatParameters& flat, const plan::ShardPlan& shards, BucketSlots& slots,
                Launch launch);
  ~SlotCollector() { StopListening(); }

  void Begin();
  absl::Status Finish();
  // The unit's backward is over: what has no gradient here by now gets zeros.
  void EndUnit(size_t unit);
  void Release();

  const std::vector<uint8_t>& used() const { return used_; }
  // For an error behind a launch.
  void Fail(const absl::Status& failure) { status_.Update(failure); }

 private:
  void OnGradient(size_t index) override;
  absl::Status Stage(size_t index, const at::Tensor& gradient, BucketSlots::Fill fill);
  // The entry's gradient has not come, and other ranks may have one.
  void StageMissing(size_t index);

  const plan::ShardPlan& shards_;
  BucketSlots& slots_;
  std::vector<uint8_t> used_;  // By parameter: a micro-batch of the step gave a gradient.
  bool in_step_ = false;       // Outside of steps gradients are the program's (gradient_sync.h).
};

}  // namespace dtrain
