// The settings that hold for one engine: the configuration's, with what engines.NAME and
// EngineOptions::settings change.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "dtrain/config.h"
#include "dtrain/engine.h"

namespace dtrain {

struct SettledSettings {
  OptimizerConfig optimizer;  // Its groups are this engine's or those of all engines.
  size_t own_groups = 0;      // The first ones of them are of this engine's settings.
  double lr_of_run = 0;  // The optimizer's lr of the configuration, which schedules start from.
  double gradient_clipping = 0;
  int64_t accumulation = 1;
};

// InvalidArgument: a setting of the program's is out of range or does not belong to the optimizer,
// or the schedule cannot scale an engine's own rate.
absl::StatusOr<SettledSettings> SettleSettings(const Config& config, const EngineOptions& options);

// The factor that EngineOptions::lr_factor gives for the update of this number; 1 without it.
// InvalidArgument: it is negative or not finite, or the function throws.
absl::StatusOr<double> LrFactorAt(const EngineOptions& options, int64_t update);

// The engine's own learning rate for the update of this number, before groups.
double LearningRateAt(const Config& config, const SettledSettings& settings,
                      const EngineOptions& options, int64_t update);

}  // namespace dtrain
