#include "runtime/gradients/gradient_sync.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"

namespace dtrain {
namespace {

// Runs after autograd has accumulated into a parameter's .grad.
class Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientSync* sync, size_t index) : sync_(sync), index_(index) {}
  void operator()(const torch::autograd::Variable& /*parameter*/) override {
    sync_->OnGradient(index_);
  }

 private:
  GradientSync* sync_;
  size_t index_;
};

}  // namespace

absl::StatusOr<std::vector<int>> RankZeroOrder(comm::Group& group, std::vector<int> order,
                                               size_t entries, const std::string& name) {
  // Unused parameters are missing from the order; -1 marks the end, so that the size is fixed.
  order.resize(entries, -1);
  const comm::Buffer buffer{order.data(), order.size() * sizeof(int), DType::kInt32, {}};
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      group.Broadcast(buffer, 0, {.name = name, .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  order.erase(std::find(order.begin(), order.end(), -1), order.end());
  return order;
}

GradientHooks::GradientHooks(FlatParameters& flat, GradientSync& sync) : flat_(flat) {
  for (size_t i = 0; i < flat.parameters().size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(flat.parameters()[i],
                                                   std::make_unique<Hook>(&sync, i));
  }
}

GradientHooks::~GradientHooks() {
  for (const at::Tensor& parameter : flat_.parameters()) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

absl::Status CheckNotLaunched(const FlatParameters& flat, size_t index,
                              const plan::LaunchQueue& queue) {
  if (!queue.is_launched(index)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "the gradient of %s came twice in one backward, the second time after its bucket was "
      "reduced: a parameter that several recomputed segments share gets one from each; put its "
      "uses into one segment, or recompute none of them; a backward of the program's own belongs "
      "between steps",
      flat.layout().entries()[index].name));
}

absl::Status CheckDense(const FlatParameters& flat, size_t index, const at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "the gradient of %s is sparse; allowed: dense (for an embedding, sparse=false)",
      flat.layout().entries()[index].name));
}

absl::Status GradientSync::AdoptReadinessOrder(comm::Group& group, const std::vector<int>& need) {
  if (order_adopted_) {
    return Tune();
  }
  DT_ASSIGN_OR_RETURN(
      const std::vector<int> order,
      RankZeroOrder(group, queue().readiness(), queue().entries(), "readiness order"));
  DT_RETURN_IF_ERROR(UseReadinessOrder(order, need));
  order_adopted_ = true;
  return absl::OkStatus();
}

}  // namespace dtrain
