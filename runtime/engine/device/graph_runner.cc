#include "runtime/engine/device/graph_runner.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/job_state.h"
#include "runtime/memory/memory_in_use.h"
#include "runtime/model/cpu_rng.h"

namespace dtrain {

std::unique_ptr<GraphRunner> GraphRunner::For(Job& job, DeviceGradients* gradients,
                                              ModuleBuffers& buffers, ops::KeptWeightCodes* codes) {
  if (!job.config().cuda_graphs()) {
    return nullptr;
  }
  const Device& device = *job.state().device;
  const std::string reason = WhyNoGraphs(job.config(), device.is_host());
  if (device.is_host()) {
    DT_LOG(Warning) << "cuda_graphs: every step runs eagerly: " << reason;
    return nullptr;
  }
  auto runner = std::unique_ptr<GraphRunner>(new GraphRunner(device, gradients, buffers, codes));
  if (!reason.empty()) {
    runner->graphs_.Refuse(reason);
  }
  return runner;
}

void GraphRunner::RefreshWeightCodes() {
  if (codes_ != nullptr && graphs_.active() && !codes_->Refresh()) {
    graphs_.Refuse("a weight of an FP8 layer is of another shape or type than when captured");
  }
}

absl::StatusOr<MicroStepGraph*> GraphRunner::Prepare(
    absl::FunctionRef<Loss()> forward,
    absl::FunctionRef<std::optional<GraphInputs>()> inputs_of_batch,
    absl::FunctionRef<absl::Status(const Loss&)> differentiate) {
  if (!graphs_.active() || !graphs_.warm()) {
    return nullptr;
  }
  const std::optional<GraphInputs> inputs = inputs_of_batch();
  if (!inputs.has_value()) {
    graphs_.Refuse(
        "the batch's type does not say which tensors it holds: give it a member function "
        "GraphInputs graph_inputs() (dtrain/graph_inputs.h)");
    return nullptr;
  }
  WholeGradients& gradients = gradients_->accumulated();
  DT_RETURN_IF_ERROR(gradients.BeginStep());  // A program's own gradients are no part of a graph.
  RefreshWeightCodes();
  MicroStepGraph* const graph = graphs_.For(*inputs, gradients.in_place());
  if (graph == nullptr) {
    return nullptr;
  }
  std::vector<at::Tensor> given;  // An eager micro-batch computes with what it was given.
  for (const at::Tensor* const tensor : inputs->tensors) {
    given.push_back(*tensor);
  }
  graph->Load(*inputs);
  if (graph->work == nullptr) {
    if (const absl::Status captured = Capture(forward, differentiate, *graph); !captured.ok()) {
      for (size_t i = 0; i < given.size(); ++i) {
        *inputs->tensors[i] = given[i];
      }
      graphs_.Refuse(std::string(captured.message()));
      return nullptr;
    }
    DT_LOG(Info) << absl::StrFormat("cuda_graphs: graph %d holds a micro-batch",
                                    graphs_.captured());
  }
  return graph;
}

// On an error all is as before, and the micro-batch can be taken eagerly.
absl::Status GraphRunner::Capture(absl::FunctionRef<Loss()> forward,
                                  absl::FunctionRef<absl::Status(const Loss&)> differentiate,
                                  MicroStepGraph& graph) {
  WholeGradients& gradients = gradients_->accumulated();
  DT_RETURN_IF_ERROR(gradients_->MakeMarks(graph.marks));
  const CpuRngSnapshot rng;
  DT_ASSIGN_OR_RETURN(graph.work, device_.NewGraph());
  // A graph's memory is of a pool of its own, which cannot use what the eager micro-batch of this
  // kind has left in the allocator's cache: together they would take its activations twice.
  device_.EmptyCache();
  absl::Status status = graph.work->Begin();
  if (status.ok()) {
    status = Record(forward, differentiate, graph);
    gradients_->EndCaptured();
    if (status.ok()) {
      status = graph.work->End();
    }
  }
  graph.after = gradients.in_place();
  if (!status.ok()) {
    graph.work = nullptr;
    gradients.SetInPlace(graph.before);
    rng.Restore();
  }
  return status;
}

// Forward and backward as an eager micro-batch has them, but for reductions and marks.
absl::Status GraphRunner::Record(absl::FunctionRef<Loss()> forward,
                                 absl::FunctionRef<absl::Status(const Loss&)> differentiate,
                                 MicroStepGraph& graph) {
  // A launch reads those that are made anew before it, and makes what there is none of.
  const ops::WithoutKeptCodes but_lasting(codes_);
  try {
    const int64_t before = BytesInUse(device_);
    const std::vector<int64_t> versions = buffers_.Versions();
    const Loss loss = forward();
    graph.buffers = buffers_.WrittenSince(versions);
    graph.activations = BytesInUse(device_) - before;
    graph.count = loss.count;
    gradients_->BeginCaptured(graph.marks);
    DT_RETURN_IF_ERROR(differentiate(loss));
    DT_RETURN_IF_ERROR(graph.marks.status());
    return gradients_->status();
  } catch (const std::exception& error) {
    return FromException("while it was captured", error);
  }
}

absl::Status GraphRunner::Launch(const MicroStepGraph& graph, int64_t step, bool last) {
  DT_RETURN_IF_ERROR(graph.work->Launch());
  buffers_.NoteWrites(graph.buffers);
  gradients_->accumulated().SetInPlace(graph.after);
  gradients_->BeginLaunched(step, last, graph.marks);
  return absl::OkStatus();
}

}  // namespace dtrain
