// The parts of an engine that both halves of a step use: its micro-batches (micro_batches.h) and
// its end (engine_core.h). EngineBuilder makes them. Private to runtime/engine.
#pragma once

#include <memory>

#include "dtrain/job.h"
#include "runtime/engine/engine_health.h"
#include "runtime/engine/model_watch.h"
#include "runtime/engine/record/step_recorder.h"
#include "runtime/engine/step_in_progress.h"
#include "runtime/engine/step_strategy.h"
#include "runtime/engine/stop_looks.h"
#include "runtime/engine/update_plan.h"
#include "runtime/gradients/gradient_sync.h"
#include "runtime/model/model_memory.h"
#include "runtime/model/module_buffers.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// `job` and `module` outlive it. Its address stays, because its members refer to each other.
struct EngineParts {
  Job& job;
  torch::nn::Module& module;
  EngineState state = {};
  std::shared_ptr<const ModelMemory> memory = nullptr;  // Where the model's tensors were.
  ModelWatch watch{module, state};
  EngineHealth health{job, state};
  StopLooks looks{job, state};
  std::unique_ptr<GradientSync> gradients = nullptr;
  std::unique_ptr<UpdatePlan> plan = nullptr;
  std::unique_ptr<ModuleBuffers> buffers = nullptr;
  std::unique_ptr<StepStrategy> strategy = nullptr;
  std::unique_ptr<StepRecorder> recorder = nullptr;
  StepInProgress step = {};
};

}  // namespace dtrain
