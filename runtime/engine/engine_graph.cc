// Micro-batches and updates of an engine on a GPU as CUDA graphs (`cuda_graphs`). What cannot be
// captured is queued eagerly, with the same numbers, and one line says why.
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/gradients/device_gradients.h"
#include "runtime/job/exception_status.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/phase.h"
#include "runtime/ops/fp8_weight_codes.h"

namespace dtrain {

void Engine::Impl::CreateGraphs() {
  if (!job.config().Find("cuda_graphs")->get<bool>()) {
    return;
  }
  std::string reason = WhyNoGraphs(job.config(), device().is_host());
  if (!device().is_host()) {
    graphs = std::make_unique<StepGraphs>(device());
    if (!reason.empty()) {
      graphs->Refuse(reason);  // The update still may be a graph.
    }
    const std::string of_update = WhyNoUpdateGraph();
    update_refused = !of_update.empty();
    if (update_refused) {
      DT_LOG(Warning) << "cuda_graphs: no graph holds an update: " << of_update;
    }
  } else {
    DT_LOG(Warning) << "cuda_graphs: every step runs eagerly: " << reason;
  }
}

std::string Engine::Impl::WhyNoUpdateGraph() const {
  if (exchange != nullptr) {
    return "where the host updates, it makes them when it knows the verdict";
  }
  if (share_return != nullptr) {
    return "with offload_param.device \"nvme\" the host takes new values to the file";
  }
  if (gather != nullptr) {
    return "at zero_optimization.stage 1 and 2 gathers of weights come between their parts";
  }
  if (job.config().optimizer().skip_unused) {
    return "with optimizer.skip_unused_parameters an update takes other parameters from step to "
           "step";
  }
  if (!device_step->can_be_graph()) {
    return absl::StrCat("optimizer ", rule->name(), " works on whole parameters, with all ranks");
  }
  return "";
}

// FP8 codes of weights that may have changed: of all, once a step.
void Engine::Impl::RefreshWeightCodes() {
  if (weight_codes != nullptr && graphs != nullptr && graphs->active() &&
      !weight_codes->Refresh()) {
    graphs->Refuse("a weight of an FP8 layer is of another shape or type than when captured");
  }
}

// Forward and backward as an eager micro-batch has them, but for reductions and marks.
absl::Status Engine::Impl::RecordMicroStep(absl::FunctionRef<Loss()> forward,
                                           MicroStepGraph& graph) {
  // A launch reads those that are made anew before it, and makes what there is none of.
  const ops::WithoutKeptCodes but_lasting(weight_codes.get());
  try {
    const int64_t before = BytesInUse(device());
    const std::vector<int64_t> versions = buffers->Versions();
    const Loss loss = forward();
    graph.buffers = buffers->WrittenSince(versions);
    graph.activations = BytesInUse(device()) - before;
    graph.count = loss.count;
    DT_RETURN_IF_ERROR(CheckLoss(loss));
    device_gradients->whole()->BeginCaptured(graph.marks);
    DT_RETURN_IF_ERROR(Differentiate(loss, /*retain_graph=*/false));
    DT_RETURN_IF_ERROR(graph.marks.status());
    return reducer->status();
  } catch (const std::exception& error) {
    return FromException("while it was captured", error);
  }
}

// On an error all is as before, and the micro-batch can be taken eagerly.
absl::Status Engine::Impl::CaptureMicroStep(absl::FunctionRef<Loss()> forward,
                                            MicroStepGraph& graph) {
  WholeGradients& gradients = device_gradients->whole()->accumulated();
  DT_RETURN_IF_ERROR(device_gradients->whole()->MakeMarks(graph.marks));
  const CpuRngSnapshot rng;
  DT_ASSIGN_OR_RETURN(graph.work, device().NewGraph());
  // A graph's memory is of a pool of its own, which cannot use what the eager micro-batch of this
  // kind has left in the allocator's cache: together they would take its activations twice.
  device().EmptyCache();
  absl::Status status = graph.work->Begin();
  if (status.ok()) {
    status = RecordMicroStep(forward, graph);
    device_gradients->whole()->EndCaptured();
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

absl::StatusOr<bool> Engine::Impl::MicroStepByGraph(
    absl::FunctionRef<Loss()> forward,
    absl::FunctionRef<std::optional<GraphInputs>()> inputs_of_batch,
    const BackwardOptions& options) {
  if (graphs == nullptr || !graphs->active() || !graphs->warm()) {
    return false;
  }
  const std::optional<GraphInputs> inputs = inputs_of_batch();
  if (!inputs.has_value()) {
    graphs->Refuse(
        "the batch's type does not say which tensors it holds: give it a member function "
        "GraphInputs graph_inputs() (dtrain/graph_inputs.h)");
    return false;
  }
  WholeGradients& gradients = device_gradients->whole()->accumulated();
  DT_RETURN_IF_ERROR(gradients.BeginStep());  // What a program left is no part of a graph.
  RefreshWeightCodes();
  MicroStepGraph* const graph = graphs->For(*inputs, gradients.in_place());
  if (graph == nullptr) {
    return false;
  }
  std::vector<at::Tensor> given;  // An eager micro-batch computes with what it was given.
  for (const at::Tensor* const tensor : inputs->tensors) {
    given.push_back(*tensor);
  }
  graph->Load(*inputs);
  if (graph->work == nullptr) {
    if (const absl::Status captured = CaptureMicroStep(forward, *graph); !captured.ok()) {
      for (size_t i = 0; i < given.size(); ++i) {
        *inputs->tensors[i] = given[i];
      }
      graphs->Refuse(std::string(captured.message()));
      return false;
    }
    DT_LOG(Info) << absl::StrFormat("cuda_graphs: graph %d holds a micro-batch",
                                    graphs->captured());
  }
  DT_RETURN_IF_ERROR(CheckModel());
  job.Beat("backward", state.step);
  const ScopedPhase phase("dtrain::backward", report.backward_s);
  MarkPhase(&StepNumbers::backward_s);  // Forward too: a graph is one operation.
  DT_RETURN_IF_ERROR(graph->work->Launch());
  MarkPhase(nullptr);
  buffers->NoteWrites(graph->buffers);
  gradients.SetInPlace(graph->after);
  NoteActivations(graph->activations);
  reducing = options.last_micro_batch;
  device_gradients->whole()->BeginLaunched(state.step + 1, reducing, graph->marks);
  DT_RETURN_IF_ERROR(EndMicroBatch(graph->count, options));
  return true;
}

// The verdict, what follows from it and the copy for the host: kernels of dtrain's alone at stage
// 0. With sharded values gathers come between them.
absl::Status Engine::Impl::QueueUpdate() {
  const auto queue = [this]() -> absl::Status {
    DT_RETURN_IF_ERROR(device_step->QueueVerdict());
    DT_RETURN_IF_ERROR(device_step->Prepare(state, reducer->reduced(), StepPieces()));
    for (size_t i = 0; i < update_pieces.size(); ++i) {
      DT_RETURN_IF_ERROR(device_step->Update(state, reducer->reduced(), StepPieces()[i]));
      if (gather != nullptr) {
        gather->Start(static_cast<int>(i));
      }
    }
    return gather == nullptr ? device_step->QueueNumbers() : absl::OkStatus();
  };
  if (graphs == nullptr || !graphs->warm() || update_refused) {
    return queue();
  }
  if (update_graph == nullptr) {
    auto captured = DeviceGraph::Capture(device(), queue);
    if (!captured.ok()) {
      update_refused = true;
      DT_LOG(Warning) << "cuda_graphs: updates run eagerly: " << captured.status().message();
      return queue();
    }
    update_graph = *std::move(captured);
  }
  return update_graph->Launch();
}

}  // namespace dtrain
