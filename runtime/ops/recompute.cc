#include "dtrain/recompute.h"

#include <memory>
#include <string>

#include "ATen/core/grad_mode.h"
#include "runtime/engine/cpu_rng.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"

namespace dtrain {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Stands in the outer graph for a segment, whose own graph exists during apply alone.
class RecomputeNode final : public torch::autograd::Node {
 public:
  RecomputeNode(Segment segment, const variable_list& inputs, const CpuRngSnapshot& before)
      : segment_(std::move(segment)), rng_(before) {
    torch::autograd::edge_list edges;
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
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
    for (const SavedVariable& saved : inputs_) {
      const at::Tensor input = saved.unpack();
      inputs.push_back(input.detach().requires_grad_(input.requires_grad()));
    }
    const variable_list outputs = RunAgain(inputs);
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
  std::vector<SavedVariable> inputs_;
  bool released_ = false;
};

}  // namespace

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
