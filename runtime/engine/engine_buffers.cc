// The module's buffers in an engine's step.
#include <memory>
#include <string>

#include "base/status.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/model/phase.h"

namespace dtrain {

void Engine::Impl::CreateBuffers() {
  using Policy = ModuleBuffers::Policy;
  const std::string name = job.config().Find("module_buffers")->get<std::string>();
  const Policy policy = name == "local"     ? Policy::kLocal
                        : name == "average" ? Policy::kAverage
                                            : Policy::kBroadcast;
  state.local_buffers = policy == Policy::kLocal;
  buffers = std::make_unique<ModuleBuffers>(
      state.flat->module_buffers(), policy,
      ModuleBuffers::Ranks{job.group(), job.state().device_group.get(), device()});
}

absl::Status Engine::Impl::SettleBuffers(const StepVerdict& verdict) {
  if (transaction != nullptr && !verdict.updates()) {
    transaction->RestoreBuffers();  // A bad batch must not stay in running statistics.
  } else if (verdict.buffers_changed) {
    const ScopedPhase phase("dtrain::wait", report.exposed_comm_s);
    DT_RETURN_IF_ERROR(buffers->MakeOneSet());
  }
  buffers->Remember();
  return absl::OkStatus();
}

}  // namespace dtrain
