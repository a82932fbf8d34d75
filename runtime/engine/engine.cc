// Engine's public calls. The sequence of a step is in engine_core.cc.
#include "dtrain/engine.h"

#include <utility>

#include "runtime/engine/build/engine_builder.h"
#include "runtime/engine/engine_core.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Job& job, torch::nn::Module& model,
                                                       EngineOptions options) {
  auto core = EngineBuilder(job, model, std::move(options)).Build();
  if (!core.ok()) {
    return core.status();
  }
  return std::unique_ptr<Engine>(new Engine(*std::move(core)));
}

Engine::Engine(std::unique_ptr<EngineCore> core) : core_(std::move(core)) {}
Engine::~Engine() = default;

int64_t Engine::step() const { return core_->state().progress.step; }

EngineState& Engine::state() { return core_->SettledState(); }

absl::StatusOr<StepReport> Engine::RunStep(absl::FunctionRef<absl::StatusOr<int64_t>()> load,
                                           absl::FunctionRef<Loss()> forward,
                                           absl::FunctionRef<std::optional<GraphInputs>()> inputs,
                                           absl::FunctionRef<std::string()> description,
                                           Tracked* data) {
  return core_->Step({load, forward, inputs, description}, data);
}

absl::Status Engine::Backward(const Loss& loss, BackwardOptions options) {
  return core_->ProgramBackward(loss, options);
}

absl::StatusOr<StepReport> Engine::Update() { return core_->Update(); }

void Engine::BeginMicroBatch() { core_->SeedNextForward(); }

absl::StatusOr<double> Engine::RunEvaluation(const internal::EvaluationCalls& calls) {
  return core_->Evaluate(calls);
}

absl::Status Engine::Replay(const StepEnd& end,
                            absl::FunctionRef<absl::Status(const GradientMemory&)> fill) {
  return core_->Replay(end, fill);
}

absl::Status Engine::WithParameters(absl::FunctionRef<void()> function) {
  return core_->WithParameters(function);
}

}  // namespace dtrain
