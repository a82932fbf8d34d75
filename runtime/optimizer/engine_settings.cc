#include "runtime/optimizer/engine_settings.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "runtime/plan/optimizer/lr_schedule.h"
#include "runtime/plan/optimizer/param_groups.h"

namespace dtrain {
namespace {

// The configuration checks its own values; the same limits for the program's.
absl::Status CheckRange(const char* name, const std::optional<double>& value, double below) {
  if (!value.has_value() || (*value >= 0 && *value < below)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("EngineOptions::settings.%s is %g; allowed: a number from 0%s", name, *value,
                      std::isinf(below) ? "" : absl::StrFormat(" to below %g", below)));
}

absl::Status CheckGroup(const ParamGroupConfig& group) {
  constexpr double kAny = HUGE_VAL;
  DT_RETURN_IF_ERROR(CheckRange("groups[].lr", group.lr, kAny));
  DT_RETURN_IF_ERROR(CheckRange("groups[].weight_decay", group.weight_decay, kAny));
  DT_RETURN_IF_ERROR(CheckRange("groups[].eps", group.eps, kAny));
  if (group.betas.has_value()) {
    DT_RETURN_IF_ERROR(CheckRange("groups[].betas", group.betas->first, 1));
    DT_RETURN_IF_ERROR(CheckRange("groups[].betas", group.betas->second, 1));
  }
  return group.params.empty() ? absl::InvalidArgumentError(
                                    "a group in EngineOptions::settings.groups has no params; name "
                                    "its parameters, for example {\"*.bias\"}")
                              : absl::OkStatus();
}

// Refuses by name what the configuration's optimizer does not have; `prefix` stands before names.
absl::Status CheckKnown(const char* prefix, const ParamGroupConfig& given,
                        const OptimizerConfig& optimizer) {
  const std::vector<absl::string_view> known = plan::SettingsOf(optimizer.kind);
  const std::pair<const char*, bool> all[] = {{"lr", given.lr.has_value()},
                                              {"weight_decay", given.weight_decay.has_value()},
                                              {"betas", given.betas.has_value()},
                                              {"eps", given.eps.has_value()}};
  for (const auto& [name, is_given] : all) {
    if (is_given && std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "EngineOptions::settings.%s%s does not belong to optimizer.type %s, which takes %s; "
          "leave it out",
          prefix, name, optimizer.name(), absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

// An optimizer of the program's own may use all of them.
absl::Status CheckOptimizerHas(const EngineSettings& settings, const OptimizerConfig& optimizer) {
  const ParamGroupConfig own{.params = {},
                             .lr = settings.lr,
                             .weight_decay = settings.weight_decay,
                             .eps = settings.eps,
                             .betas = settings.betas};
  DT_RETURN_IF_ERROR(CheckKnown("", own, optimizer));
  for (const ParamGroupConfig& group : settings.groups) {
    DT_RETURN_IF_ERROR(CheckKnown("groups[].", group, optimizer));
  }
  return absl::OkStatus();
}

absl::Status CheckProgramSettings(const EngineSettings& settings) {
  constexpr double kAny = HUGE_VAL;
  DT_RETURN_IF_ERROR(CheckRange("lr", settings.lr, kAny));
  DT_RETURN_IF_ERROR(CheckRange("weight_decay", settings.weight_decay, kAny));
  DT_RETURN_IF_ERROR(CheckRange("eps", settings.eps, kAny));
  DT_RETURN_IF_ERROR(CheckRange("gradient_clipping", settings.gradient_clipping, kAny));
  if (settings.betas.has_value()) {
    DT_RETURN_IF_ERROR(CheckRange("betas", settings.betas->first, 1));
    DT_RETURN_IF_ERROR(CheckRange("betas", settings.betas->second, 1));
  }
  if (const auto& steps = settings.gradient_accumulation_steps; steps.has_value() && *steps < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "EngineOptions::settings.gradient_accumulation_steps is %d; allowed: 1 or more", *steps));
  }
  for (const ParamGroupConfig& group : settings.groups) {
    DT_RETURN_IF_ERROR(CheckGroup(group));
  }
  return absl::OkStatus();
}

// Schedules that have rates of their own are scaled by the ratio to the run's.
absl::Status CheckScalable(const Config& config, const SettledSettings& settled) {
  using Schedule = SchedulerConfig::Kind;
  const Schedule kind = config.scheduler().kind;
  const bool divides = kind != Schedule::kConstant && kind != Schedule::kWarmupCosine &&
                       kind != Schedule::kWarmupStableDecay;
  const bool has_rates =
      settled.optimizer.lr != settled.lr_of_run ||
      std::any_of(settled.optimizer.groups.begin(), settled.optimizer.groups.end(),
                  [](const ParamGroupConfig& group) { return group.lr.has_value(); });
  return divides && has_rates && settled.lr_of_run == 0
             ? absl::InvalidArgumentError(
                   "the scheduler uses the ratio of an engine's lr (EngineOptions::settings) to "
                   "optimizer.params.lr, which is 0; set it above 0")
             : absl::OkStatus();
}

}  // namespace

absl::StatusOr<SettledSettings> SettleSettings(const Config& config, const EngineOptions& options) {
  DT_RETURN_IF_ERROR(CheckProgramSettings(options.settings));
  if (options.optimizer == nullptr) {
    DT_RETURN_IF_ERROR(CheckOptimizerHas(options.settings, config.optimizer()));
  }
  const EngineSettings own = Merged(config.engine_settings(options.name), options.settings);
  SettledSettings settled{
      .optimizer = config.optimizer(),
      .own_groups = own.groups.size(),
      .lr_of_run = config.optimizer().lr,
      .gradient_clipping = own.gradient_clipping.value_or(config.gradient_clipping()),
      .accumulation =
          own.gradient_accumulation_steps.value_or(config.gradient_accumulation_steps())};
  OptimizerConfig& optimizer = settled.optimizer;
  if (own.lr.has_value()) {
    optimizer.lr = *own.lr;
    optimizer.adam_lr = *own.lr;
  }
  optimizer.weight_decay = own.weight_decay.value_or(optimizer.weight_decay);
  optimizer.eps = own.eps.value_or(optimizer.eps);
  if (own.betas.has_value()) {
    std::tie(optimizer.beta1, optimizer.beta2) = *own.betas;
  }
  optimizer.groups.insert(optimizer.groups.begin(), own.groups.begin(), own.groups.end());
  DT_RETURN_IF_ERROR(CheckScalable(config, settled));
  return settled;
}

absl::StatusOr<double> LrFactorAt(const EngineOptions& options, int64_t update) {
  if (options.lr_factor == nullptr) {
    return 1.0;
  }
  try {
    const double factor = options.lr_factor(update);
    if (std::isfinite(factor) && factor >= 0) {
      return factor;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "EngineOptions::lr_factor gives %g for step %d; allowed: a finite number, 0 or more",
        factor, update));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("in EngineOptions::lr_factor of step %d: %s", update, error.what()));
  }
}

double LearningRateAt(const Config& config, const SettledSettings& settings,
                      const EngineOptions& options, int64_t update) {
  return plan::GroupLrAt(config.scheduler(), settings.lr_of_run, settings.optimizer.lr, update) *
         LrFactorAt(options, update).value_or(1);
}

}  // namespace dtrain
