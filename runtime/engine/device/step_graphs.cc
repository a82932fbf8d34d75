#include "runtime/engine/device/step_graphs.h"

#include <algorithm>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/log.h"

namespace dtrain {
namespace {

bool SameKind(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() &&
         (!a.defined() || (a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes()));
}

}  // namespace

bool MicroStepGraph::IsFor(const GraphInputs& batch, const GradientsInPlace& in_place) const {
  return numbers == batch.numbers && before == in_place &&
         std::equal(
             inputs.begin(), inputs.end(), batch.tensors.begin(), batch.tensors.end(),
             [](const at::Tensor& own, const at::Tensor* given) { return SameKind(own, *given); });
}

void MicroStepGraph::Load(const GraphInputs& batch) const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined()) {
      inputs[i].copy_(*batch.tensors[i], /*non_blocking=*/true);
      *batch.tensors[i] = inputs[i];
    }
  }
}

MicroStepGraph* StepGraphs::For(const GraphInputs& batch, const GradientsInPlace& in_place) {
  if (!active_ || !warm()) {
    return nullptr;
  }
  const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const auto& graph) { return graph->IsFor(batch, in_place); });
  if (found != graphs_.end()) {
    return found->get();
  }
  if (graphs_.size() == kGraphsMax) {
    Refuse(absl::StrFormat(
        "micro-batches came in more than %d kinds (shapes, host numbers, place in the step); pad "
        "them to one shape",
        kGraphsMax));
    return nullptr;
  }
  // This one warms up what a first pass of new shapes makes (algorithms, workspaces).
  auto made = std::make_unique<MicroStepGraph>();
  for (const at::Tensor* const tensor : batch.tensors) {
    made->inputs.push_back(
        tensor->defined() ? at::empty(tensor->sizes(), tensor->options().device(device_.tensors()))
                          : at::Tensor());
  }
  made->numbers = batch.numbers;
  made->before = in_place;
  graphs_.push_back(std::move(made));
  return nullptr;
}

void StepGraphs::Refuse(const std::string& reason) {
  active_ = false;
  graphs_.clear();
  DT_LOG(Warning) << "cuda_graphs: micro-batches run eagerly from here: " << reason;
}

size_t StepGraphs::captured() const {
  return static_cast<size_t>(std::count_if(
      graphs_.begin(), graphs_.end(), [](const auto& graph) { return graph->work != nullptr; }));
}

std::string WhyNoGraphs(const Config& config, bool on_host) {
  if (on_host) {
    return "ranks train on the CPU; graphs are a GPU's";
  }
  if (config.precision().kind == PrecisionConfig::Kind::kFloat16) {
    return "the host gives each backward of fp16 its loss scale; bf16.enabled has none";
  }
  if (config.zero_stage() == 3) {
    return "at zero_optimization.stage 3 the host gathers weights as operations come to need "
           "them; set stage 0 or 1";
  }
  if (config.zero_stage() == 2) {
    return "at zero_optimization.stage 2 a gradient's place follows from the buckets before it; "
           "set stage 0 or 1";
  }
  if (config.activation_checkpointing().tier != ActivationCheckpointingConfig::Tier::kNone) {
    return "what recomputed segments keep goes to the host and gives its memory back, and a graph "
           "keeps the memory of its tensors; set activation_checkpointing.cpu_checkpointing to "
           "false";
  }
  if (*config.Find("activation_checkpointing.mode") != "none") {
    return "a recomputed segment saves the generator's state on the host; set "
           "activation_checkpointing.mode to \"none\"";
  }
  return "";
}

}  // namespace dtrain
