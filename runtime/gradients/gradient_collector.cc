#include "runtime/gradients/gradient_collector.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"

namespace dtrain {

// Runs after autograd has accumulated into a parameter's .grad.
class GradientCollector::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientCollector& collector, size_t index) : collector_(collector), index_(index) {}
  void operator()(const torch::autograd::Variable& /*parameter*/) override {
    collector_.OnGradient(index_);
  }

 private:
  GradientCollector& collector_;
  const size_t index_;
};

void GradientCollector::Listen() {
  listens_ = true;
  for (size_t i = 0; i < flat_.parameters().size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(flat_.parameters()[i],
                                                   std::make_unique<Hook>(*this, i));
  }
}

void GradientCollector::StopListening() {
  if (!std::exchange(listens_, false)) {
    return;
  }
  for (const at::Tensor& parameter : flat_.parameters()) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

absl::Status GradientCollector::CheckNotLaunched(size_t index) const {
  if (!queue_.is_launched(index)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "the gradient of %s came twice in one backward, the second time after its bucket was "
      "reduced: a parameter that several recomputed segments share gets one from each; put its "
      "uses into one segment, or recompute none of them; a backward of the program's own belongs "
      "between steps",
      flat_.layout().entries()[index].name));
}

void GradientCollector::LaunchBucket(int bucket) {
  if (status_.ok()) {  // Else Finish reports the error; launching on would only hide it.
    status_.Update(launch_(bucket));  // launch_ may have set status_ itself.
  }
}

WholeCollector::WholeCollector(FlatParameters& flat, Launch launch,
                               std::function<void(size_t)> taken)
    : GradientCollector(flat, std::move(launch)),
      taken_(std::move(taken)),
      whole_(flat, [this](size_t index) { OnGradient(index); }) {}

void WholeCollector::Begin(bool last) {
  status_.Update(whole_.BeginBackward());
  last_ = last;
  if (last) {
    queue_.Arm();
  }
}

void WholeCollector::OnGradient(size_t index) {
  if (!whole_.in_step()) {
    return;
  }
  absl::Status taken = whole_.Take(index);
  if (last_) {
    taken.Update(CheckNotLaunched(index));
  }
  if (!taken.ok()) {
    status_.Update(taken);
    return;
  }
  if (!last_) {
    return;
  }
  if (taken_ != nullptr) {
    taken_(index);
  }
  queue_.Ready(index, [this](int bucket) { LaunchBucket(bucket); });
}

absl::Status WholeCollector::Finish() {
  status_.Update(whole_.EndBackward());
  if (last_) {
    whole_.ZeroUnused();
    queue_.ReadyAll([this](int bucket) { LaunchBucket(bucket); });
  }
  return status_;
}

void WholeCollector::Release() {
  whole_.Release();
  last_ = false;
  status_ = absl::OkStatus();
}

SlotCollector::SlotCollector(FlatParameters& flat, const plan::ShardPlan& shards,
                             BucketSlots& slots, Launch launch)
    : GradientCollector(flat, std::move(launch)),
      shards_(shards),
      slots_(slots),
      used_(flat.parameters().size(), 0) {}

void SlotCollector::Begin() {
  in_step_ = true;
  queue_.Arm();
}

void SlotCollector::OnGradient(size_t index) {
  if (!in_step_) {
    return;
  }
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
  absl::Status staged = CheckDense(flat_, index, gradient);
  staged.Update(CheckNotLaunched(index));
  if (staged.ok()) {
    staged = Stage(index, gradient.contiguous().view({-1}),
                   queue_.is_ready(index) ? BucketSlots::Fill::kAdd : BucketSlots::Fill::kCopy);
  }
  if (!staged.ok()) {
    status_.Update(staged);
    return;
  }
  used_[index] = 1;
  gradient.reset();
  queue_.Ready(index, [this](int bucket) { LaunchBucket(bucket); });
}

absl::Status SlotCollector::Stage(size_t index, const at::Tensor& gradient,
                                  BucketSlots::Fill fill) {
  const plan::LayoutEntry& entry = flat_.layout().entries()[index];
  const plan::FlatRange whole{entry.offset, entry.offset + entry.elements};
  const plan::BucketSpan span = shards_.spans()[index];
  for (int bucket = span.first; bucket < span.last; ++bucket) {
    const plan::FlatRange range = shards_.buckets()[static_cast<size_t>(bucket)];
    const plan::FlatRange piece = plan::Intersect(whole, range);
    const at::Tensor from = gradient.defined()
                                ? gradient.narrow(0, piece.begin - whole.begin, piece.elements())
                                : gradient;
    DT_RETURN_IF_ERROR(
        slots_.Write(bucket, piece.begin - range.begin, piece.elements(), from, fill));
  }
  return absl::OkStatus();
}

void SlotCollector::StageMissing(size_t index) {
  if (queue_.is_ready(index) || !status_.ok()) {
    return;
  }
  if (flat_.parameters()[index].grad().defined()) {  // It was left there before the step.
    OnGradient(index);
  } else {
    status_.Update(Stage(index, {}, BucketSlots::Fill::kZero));
  }
}

void SlotCollector::EndUnit(size_t unit) {
  if (!in_step_ || !status_.ok()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (const size_t index : queue_.unit(unit)) {
    StageMissing(index);
  }
  queue_.EndUnit(unit, [this](int bucket) { LaunchBucket(bucket); });
}

absl::Status SlotCollector::Finish() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < flat_.parameters().size() && status_.ok(); ++i) {
    StageMissing(i);
  }
  queue_.ReadyAll([this](int bucket) { LaunchBucket(bucket); });
  return status_;
}

void SlotCollector::Release() {
  in_step_ = false;
  std::fill(used_.begin(), used_.end(), uint8_t{0});
  flat_.ClearGradients();
  status_ = absl::OkStatus();
}

}  // namespace dtrain
