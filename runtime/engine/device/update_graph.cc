#include "runtime/engine/device/update_graph.h"

#include <utility>

#include "base/log.h"
#include "runtime/engine/device/step_graphs.h"

namespace dtrain {

UpdateGraph::UpdateGraph(const Device& device, const std::string& why_not)
    : device_(device), refused_(!why_not.empty()) {
  if (refused_) {
    DT_LOG(Warning) << "cuda_graphs: no graph holds an update: " << why_not;
  }
}

absl::Status UpdateGraph::Run(absl::FunctionRef<absl::Status()> queue) {
  if (refused_ || steps_ < StepGraphs::kWarmUpSteps) {
    return queue();
  }
  if (graph_ == nullptr) {
    auto captured = DeviceGraph::Capture(device_, queue);
    if (!captured.ok()) {
      refused_ = true;
      DT_LOG(Warning) << "cuda_graphs: updates run eagerly: " << captured.status().message();
      return queue();
    }
    graph_ = *std::move(captured);
  }
  return graph_->Launch();
}

}  // namespace dtrain
