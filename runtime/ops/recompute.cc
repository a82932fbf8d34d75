#include "dtrain/recompute.h"

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "runtime/engine/cpu_rng.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/custom_class.h"

namespace dtrain {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr char kPlan[] = "plan";

// What backward needs beside the inputs.
struct Plan : torch::CustomClassHolder {
  explicit Plan(Segment run) : segment(std::move(run)) {}
  Segment segment;
  CpuRngSnapshot rng;  // Before forward.
};

// The segment again, with a graph, from inputs that end the outer one.
variable_list RunAgain(const Plan& plan, const variable_list& inputs) {
  const at::AutoGradMode with_graph(true);
  const CpuRngSnapshot now;
  plan.rng.Restore();
  variable_list outputs = plan.segment(inputs);
  now.Restore();
  return outputs;
}

class RecomputeFunction : public torch::autograd::Function<RecomputeFunction> {
 public:
  // `anchor` requires a gradient, so that a segment whose inputs do not (token ids) is in the graph
  // for the sake of its parameters.
  static variable_list forward(AutogradContext* context, const at::Tensor& /*anchor*/,
                               const Segment& segment, const variable_list& inputs) {
    context->saved_data[kPlan] = c10::IValue::make_capsule(c10::make_intrusive<Plan>(segment));
    context->save_for_backward(inputs);
    return segment(inputs);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto plan =
        c10::static_intrusive_pointer_cast<Plan>(context->saved_data[kPlan].toCapsule());
    variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    }
    const variable_list outputs = RunAgain(*plan, inputs);
    variable_list roots;
    variable_list seeds;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (gradients[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        seeds.push_back(gradients[i]);
      }
    }
    torch::autograd::backward(roots, seeds);  // Also into the parameters, whose hooks see it.
    variable_list result = {at::Tensor(), at::Tensor()};  // Of the anchor and the segment.
    for (const at::Tensor& input : inputs) {
      result.push_back(input.grad());
    }
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> RecomputeSegment(Segment segment, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return segment(inputs);
  }
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return RecomputeFunction::apply(anchor, segment, inputs);
}

}  // namespace dtrain
