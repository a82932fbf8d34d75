// The choice of an optimizer, and its settings for each parameter. Free of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtrain {

// One entry of optimizer.param_groups: what it gives holds for the parameters that it names.
struct ParamGroupConfig {
  std::vector<std::string> params;  // Patterns; `*` stands for any text.
  // Only this engine's parameters (EngineOptions::name); "": those of all.
  std::string engine = {};
  std::optional<double> lr = {};                        // Before the schedule.
  std::optional<double> weight_decay = {};              // 0 or more.
  std::optional<double> eps = {};                       // Above 0.
  std::optional<std::pair<double, double>> betas = {};  // Each in [0, 1).
};

// The optimizer's settings for one parameter.
struct ParamSettings {
  double lr = 0;            // Before the schedule.
  double weight_decay = 0;  // 0 or more.
  double beta1 = 0;         // Decay rate of the first moment.
  double beta2 = 0;         // Decay rate of the second moment.
  double eps = 0;           // Added to the root of the second moment.
  bool orthogonal = false;  // Muon's rule for matrices, not its AdamW.
  int64_t missed = 0;       // Updates that left the parameter as it was: it was unused.
  bool operator==(const ParamSettings&) const = default;  // Equal in every field.
};

// Settings of one engine where they differ from those of the others: `engines.NAME` in the
// configuration, EngineOptions::settings in the program. What is absent is as optimizer.params and
// the rest of the configuration say.
struct EngineSettings {
  std::optional<double> lr = {};            // Before the schedule; with Muon for all parameters.
  std::optional<double> weight_decay = {};  // 0 or more.
  std::optional<double> eps = {};           // Above 0.
  std::optional<std::pair<double, double>> betas = {};      // Each in [0, 1).
  std::optional<double> gradient_clipping = {};             // Largest global norm; 0: no clipping.
  std::optional<int64_t> gradient_accumulation_steps = {};  // 1 or more.
  // They come before the groups of optimizer.param_groups.
  std::vector<ParamGroupConfig> groups = {};
};

// Each setting of `first`, or else that of `second`; the groups of both, those of `first` before.
EngineSettings Merged(const EngineSettings& first, const EngineSettings& second);

// The optimizer of a configuration, with its settings.
struct OptimizerConfig {
  // The values of optimizer.type.
  enum class Kind { kAdamW, kAdam, kSgd, kLion, kLamb, kAdagrad, kMuon };
  Kind kind = Kind::kAdamW;              // kAdam: weight decay in the gradient.
  double lr = 0;                         // Muon: for hidden matrices.
  double beta1 = 0;                      // Decay rate of the first moment.
  double beta2 = 0;                      // Decay rate of the second moment.
  double eps = 0;                        // Added to the root of the second moment.
  double weight_decay = 0;               // 0 or more.
  double momentum = 0;                   // SGD, Muon.
  double dampening = 0;                  // SGD: the share of a gradient that momentum leaves out.
  bool nesterov = false;                 // SGD: Nesterov's momentum.
  bool bias_correction = true;           // AdamW, Adam, LAMB.
  double max_coeff = 0;                  // LAMB: limits of the trust ratio.
  double min_coeff = 0;                  // The lower limit.
  double lr_decay = 0;                   // Adagrad.
  double initial_accumulator_value = 0;  // Adagrad: sum of squares at the start.
  double adam_lr = 0;                    // Muon: for parameters that are no hidden matrices.
  bool bf16_states = false;              // False: states are fp32.
  // Parameters whose name matches one of these are not decayed: as a last group. Empty, as in torch
  // and DeepSpeed: all are decayed.
  std::vector<std::string> no_weight_decay = {};
  // Settings for some parameters; the first group that matches and gives one holds.
  std::vector<ParamGroupConfig> groups = {};
  // A parameter that no rank used in a step stays as it is; else its gradient is zero.
  bool skip_unused = false;

  // Its name in checkpoints: "AdamW".
  std::string name() const;
  // The names, in checkpoints, of the states that it keeps of each element.
  std::vector<std::string> state_slots() const;
  // The settings for the parameter of this name and shape in `engine` (EngineOptions::name): each
  // comes from the first group that matches and gives it, or from optimizer.params.
  ParamSettings SettingsFor(absl::string_view parameter_name, absl::Span<const int64_t> shape,
                            absl::string_view engine = {}) const;
};

// Whether the group is for the parameters of `engine`, or of all.
inline bool IsFor(const ParamGroupConfig& group, absl::string_view engine) {
  return group.engine.empty() || group.engine == engine;
}

// `*` in `pattern` stands for any text, also none.
bool MatchesPattern(absl::string_view pattern, absl::string_view name);
// For a `pattern` that matches none of `names`: the first of them, up to `most`, with the fewest
// letters to change until one does.
std::vector<std::string> NearestNames(absl::string_view pattern,
                                      const std::vector<std::string>& names, size_t most = 3);

}  // namespace dtrain
