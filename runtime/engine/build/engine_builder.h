// From a configuration and a module to an engine's parts: Engine::Create.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "runtime/engine/build/shard_layout.h"
#include "runtime/engine/device/device_strategy.h"
#include "runtime/engine/engine_core.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/host_strategy.h"
#include "runtime/engine/micro_batches.h"
#include "runtime/gradients/device_gradient_sync.h"
#include "runtime/offload/far_tier.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/optimizer/update_exchange.h"
#include "runtime/optimizer/update_rule.h"
#include "runtime/plan/layout/zero_policy.h"

namespace dtrain {

class EngineBuilder {
 public:
  // REQUIRES: `job` and `module` outlive what is built.
  EngineBuilder(Job& job, torch::nn::Module& module, EngineOptions options);

  // Collective; once.
  absl::StatusOr<std::unique_ptr<EngineCore>> Build();

 private:
  const Device& device() const;
  EngineState& state() { return parts_->state; }

  absl::Status DescribeModel();
  // InvalidArgument: memory that engines which were made before have too.
  absl::Status CheckApartFromOthers();
  // Decides which rank updates which elements.
  absl::Status PlanUpdate();
  // The states and masters of what this rank owns; then the module's parameters go into the flat
  // buffers.
  absl::Status TakeParameters();
  absl::Status MakeStates(int64_t elements);
  absl::Status MakeExchange(int64_t elements);
  // How gradients travel, and what of a step differs by device.
  absl::Status MakeGradients();
  absl::Status MakeHostStrategy();
  absl::Status MakeDeviceGradients();
  absl::Status MakeDeviceStrategy();
  void MakeWeightCodes();
  void MakeBuffers();

  Job& job_;
  torch::nn::Module& module_;
  const plan::ZeroPolicy zero_;
  std::unique_ptr<EngineParts> parts_;
  MicroBatches::Parts micro_batches_;
  LeafModules leaf_modules_;
  std::unique_ptr<UpdateRule> rule_;
  std::unique_ptr<StateStream> stream_;
  std::unique_ptr<UpdateExchange> exchange_;
  DeviceGradientSync* device_gradients_ = nullptr;  // On a GPU, the engine's; else null.
};

}  // namespace dtrain
