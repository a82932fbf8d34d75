#include "runtime/engine/live_passes.h"

namespace dtrain {

void SetStepOfLive(const EngineState& state, int64_t step) {
  for (LiveParameters* const live : state.lives()) {
    live->SetStep(step);
  }
}

void BeginPass(const EngineState& state, plan::GatherSchedule::Pass pass) {
  for (LiveParameters* const live : state.lives()) {
    live->BeginPass(pass);
  }
}

void BeginBackwardPass(const EngineState& state) {
  for (LiveParameters* const live : state.lives()) {
    live->BeginBackward();
  }
}

void EndPass(const EngineState& state) {
  for (LiveParameters* const live : state.lives()) {
    live->EndPass();
  }
}

absl::Status LiveStatus(const EngineState& state) {
  absl::Status status;
  for (const LiveParameters* const live : state.lives()) {
    status.Update(live->status());
  }
  return status;
}

absl::Status DropGathered(const EngineState& state) {
  return state.live != nullptr ? state.live->Invalidate() : absl::OkStatus();
}

absl::Status DropAllGathered(const EngineState& state) {
  absl::Status status;
  for (LiveParameters* const live : state.lives()) {
    status.Update(live->Invalidate());
  }
  return status;
}

absl::Status WithWholeWeights(const EngineState& state, absl::FunctionRef<void()> function) {
  if (state.frozen != nullptr) {
    absl::Status others;
    absl::Status status =
        state.frozen->live->WithAll([&] { others = state.live->WithAll(function); });
    status.Update(others);
    return status;
  }
  if (state.live != nullptr) {
    return state.live->WithAll(function);
  }
  function();
  return absl::OkStatus();
}

double TakeWaitedSeconds(const EngineState& state) {
  double seconds = 0;
  for (LiveParameters* const live : state.lives()) {
    seconds += live->TakeWaitedSeconds();
  }
  return seconds;
}

}  // namespace dtrain
