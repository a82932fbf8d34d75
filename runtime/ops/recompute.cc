#include "dtrain/recompute.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/phase.h"
#include "runtime/offload/activation_store.h"
#include "runtime/ops/recompute_times.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"

namespace dtrain {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The seconds of one segment's backward, added to the process's when it ends.
class SegmentSeconds {
 public:
  ~SegmentSeconds() {
    std::lock_guard lock(Mutex());
    All().recompute += seconds.recompute;
    All().wait += seconds.wait;
  }
  static RecomputeSeconds Take() {
    std::lock_guard lock(Mutex());
    return std::exchange(All(), RecomputeSeconds());
  }
  RecomputeSeconds seconds;

 private:
  static std::mutex& Mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static RecomputeSeconds& All() {
    static auto* const all = new RecomputeSeconds;
    return *all;
  }
};

// An input of a segment until backward: as LibTorch keeps tensors, or in the far tier.
class KeptInput {
 public:
  KeptInput(const at::Tensor& input, const std::shared_ptr<ActivationStore>& store) {
    if (store == nullptr || !store->Takes(input)) {
      if (store != nullptr) {
        const absl::Status near = store->LeaveNear(input);
        TORCH_CHECK(near.ok(), std::string(near.message()));
      }
      near_ = SavedVariable(input, /*is_output=*/false);
      return;
    }
    store_ = store;
    far_ = store->Put(input);
    version_ = torch::autograd::impl::version_counter(input);
    version_then_ = version_.current_version();
  }
  // It again, as a leaf.
  at::Tensor Unpack() const {
    if (store_ == nullptr) {
      const at::Tensor input = near_.unpack();
      return input.detach().requires_grad_(input.requires_grad());
    }
    TORCH_CHECK(version_.current_version() == version_then_,
                "an input of a recomputed segment has been modified by an inplace operation: it is "
                "at version ",
                version_.current_version(), "; expected version ", version_then_);
    return store_->Get(far_).detach().requires_grad_(true);
  }

 private:
  SavedVariable near_;
  std::shared_ptr<ActivationStore> store_;  // Null: near.
  std::shared_ptr<ActivationStore::Kept> far_;
  c10::VariableVersion version_{c10::VariableVersion::DISABLED};
  uint32_t version_then_ = 0;
};

// Stands in the outer graph for a segment, whose own graph exists during apply alone.
class RecomputeNode final : public torch::autograd::Node {
 public:
  RecomputeNode(Segment segment, const variable_list& inputs, const CpuRngSnapshot& before)
      : segment_(std::move(segment)), rng_(before) {
    torch::autograd::edge_list edges;
    const std::shared_ptr<ActivationStore> store = ActivationStore::Current();
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, store);
      edges.push_back(input.requires_grad() ? torch::autograd::impl::gradient_edge(input)
                                            : torch::autograd::Edge());
    }
    set_next_edges(std::move(edges));
  }

  std::string name() const override { return "dtrain::Recompute"; }
  void release_variables() override {
    inputs_.clear();
    released_ = true;
  }

  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
    variable_list inputs;
    variable_list outputs;
    {
      SegmentSeconds spent;
      {
        const ScopedPhase phase("dtrain::activation_wait", spent.seconds.wait);
        for (const KeptInput& kept : inputs_) {
          inputs.push_back(kept.Unpack());
        }
      }
      const ScopedPhase phase("dtrain::recompute", spent.seconds.recompute);
      outputs = RunAgain(inputs);
    }
    variable_list roots;
    variable_list seeds;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (gradients[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        seeds.push_back(gradients[i]);
      }
    }
    torch::autograd::backward(roots, seeds);  // Also into the parameters, whose hooks see it.
    variable_list result;
    for (const at::Tensor& input : inputs) {
      result.push_back(input.grad());
    }
    return result;
  }

 private:
  // The segment with a graph, from inputs that end the outer one.
  variable_list RunAgain(const variable_list& inputs) const {
    const at::AutoGradMode with_graph(true);
    const CpuRngSnapshot now;
    rng_.Restore();
    variable_list outputs = segment_(inputs);
    now.Restore();
    return outputs;
  }

  const Segment segment_;
  const CpuRngSnapshot rng_;  // Before forward.
  std::vector<KeptInput> inputs_;
  bool released_ = false;
};

}  // namespace

RecomputeSeconds TakeRecomputeSeconds() { return SegmentSeconds::Take(); }

std::vector<at::Tensor> RecomputeSegment(Segment segment, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return segment(inputs);
  }
  const CpuRngSnapshot before;
  variable_list outputs;
  {
    const at::NoGradGuard no_graph;
    for (const at::Tensor& output : segment(inputs)) {
      outputs.push_back(output.detach());  // An input that is passed on keeps its own history.
    }
  }
  // In the graph whatever the inputs are: token ids need no gradient, but the parameters do.
  const auto node = std::shared_ptr<RecomputeNode>(
      new RecomputeNode(std::move(segment), inputs, before), torch::autograd::deleteNode);
  for (const at::Tensor& output : outputs) {
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace dtrain
