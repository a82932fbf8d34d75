#include "runtime/checkpoint/journal/after_steps.h"

#include <utility>

#include "base/status.h"

namespace dtrain {

AfterSteps::AfterSteps(const EngineState& engine, const RankPlace& place,
                       const std::vector<std::string>& journalled, absl::Duration timeout)
    : engine_(engine), place_(place), buffers_(engine, journalled) {
  const Device& device = engine.flat->device();
  for (auto& copies : copies_) {
    copies = device.is_host() ? nullptr : std::make_unique<QueuedCopies>(device, timeout);
  }
}

LateAfter AfterSteps::Take(const RunState& run) {
  auto after = std::make_shared<checkpoint::AfterStep>();
  after->state["tracked"] = run.tracked;
  AddGenerators(*after);
  const std::vector<NamedTensor>& buffers = engine_.flat->module_buffers();
  std::vector<NamedTensor> tensors = buffers;
  if (place_.rank == 0) {  // They are the same on every rank.
    tensors.insert(tensors.end(), run.tensors.begin(), run.tensors.end());
  }
  const auto add = [this, after, count = buffers.size()](absl::Span<const NamedTensor> now) {
    buffers_.Add(now.subspan(0, count), place_, *after);
    AddTracked(now.subspan(count), *after);
  };
  if (copies_[next_] == nullptr) {
    add(tensors);
    return [after] { return absl::StatusOr<std::shared_ptr<const checkpoint::AfterStep>>(after); };
  }
  QueuedCopies& copies = *copies_[next_];
  next_ = 1 - next_;
  const absl::Status queued = copies.Queue(tensors);
  return [after, add, queued,
          &copies]() -> absl::StatusOr<std::shared_ptr<const checkpoint::AfterStep>> {
    DT_RETURN_IF_ERROR(queued);
    DT_ASSIGN_OR_RETURN(const std::vector<NamedTensor> now, copies.Wait());
    add(now);
    return std::shared_ptr<const checkpoint::AfterStep>(after);
  };
}

}  // namespace dtrain
