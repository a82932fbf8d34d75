// ConfigBuilder's rules for the optimizer: which type has which parameter, and defaults by type.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "runtime/plan/config/config_builder.h"
#include "runtime/plan/optimizer/param_groups.h"

namespace dtrain {
namespace {

using Params = std::vector<absl::string_view>;
constexpr char kSection[] = "optimizer.params.";

// The parameters of an optimizer type; `defaults` replace the values of the table of keys.
struct OptimizerType {
  OptimizerConfig::Kind kind;
  Params params;
  Json defaults;
};

// DeepSpeed's defaults; torch's for a type that DeepSpeed hands to torch.
OptimizerType TypeOf(absl::string_view type) {
  using Kind = OptimizerConfig::Kind;
  if (type == "SGD") {
    return {Kind::kSgd, {"lr", "weight_decay", "momentum", "dampening", "nesterov"}, {}};
  }
  if (type == "Lion") {
    return {Kind::kLion, {"lr", "weight_decay", "betas"}, {}};
  }
  if (type == "Lamb") {
    return {Kind::kLamb,
            {"lr", "weight_decay", "betas", "eps", "max_coeff", "min_coeff", "bias_correction"},
            {}};
  }
  if (type == "Adagrad") {
    return {Kind::kAdagrad,
            {"lr", "weight_decay", "eps", "lr_decay", "initial_accumulator_value"},
            {{"lr", 1e-2}, {"eps", 1e-10}}};
  }
  if (type == "Muon") {
    return {Kind::kMuon,
            {"lr", "weight_decay", "betas", "eps", "momentum", "muon_lr", "adam_lr"},
            {{"lr", 0.02}, {"betas", {0.9, 0.95}}, {"eps", 1e-10}, {"momentum", 0.95}}};
  }
  return {
      Kind::kAdamW, {"lr", "weight_decay", "betas", "eps", "adam_w_mode", "bias_correction"}, {}};
}

bool HaveRates(const std::vector<ParamGroupConfig>& groups) {
  return std::any_of(groups.begin(), groups.end(),
                     [](const ParamGroupConfig& group) { return group.lr.has_value(); });
}

bool EnginesHaveRates(const std::map<std::string, EngineSettings, std::less<>>& engines) {
  return std::any_of(engines.begin(), engines.end(), [](const auto& engine) {
    return engine.second.lr.has_value() || HaveRates(engine.second.groups);
  });
}

}  // namespace

absl::Status ConfigBuilder::FillOptimizer() {
  const std::string type =
      Given("optimizer.type") ? Value("optimizer.type").get<std::string>() : "AdamW";
  const OptimizerType rules = TypeOf(type);
  for (const auto& [path, value] : values_->by_key) {
    const plan::ConfigKey* key = plan::FindConfigKey(path);
    if (path.rfind(kSection, 0) != 0 || key->use != plan::KeyUse::kUsed || IsAuto(path) ||
        IsDefault(path)) {
      continue;
    }
    const std::string name = path.substr(sizeof(kSection) - 1);
    if (std::find(rules.params.begin(), rules.params.end(), name) == rules.params.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %s does not belong to %s, which takes %s", WhereGiven(path), path,
                          type, absl::StrJoin(rules.params, ", ")));
    }
  }
  const bool lr_given = Given("optimizer.params.lr");
  for (const auto& [name, value] : rules.defaults.items()) {
    if (!Given(kSection + name)) {
      values_->by_key[kSection + name] = value;
      values_->origins[kSection + name] = ConfigOrigin::kDefault;
    }
  }
  if (rules.kind == OptimizerConfig::Kind::kMuon) {
    const auto half = [&](const std::string& key, double absent) {
      if (!Given(key)) {
        Derive(key, lr_given ? Value("optimizer.params.lr") : Json(absent));
      }
    };
    half("optimizer.params.muon_lr", 0.02);
    half("optimizer.params.adam_lr", 3e-4);
  }
  if (const auto list = values_->by_key.find("optimizer.param_groups");
      list != values_->by_key.end()) {
    auto groups = plan::ParseParamGroups(list->second, plan::SettingsOf(rules.kind));
    if (!groups.ok()) {
      return Annotate(groups.status(), WhereGiven("optimizer.param_groups"));
    }
    values_->optimizer.groups = *std::move(groups);
  }
  if (const auto found = values_->by_key.find("engines"); found != values_->by_key.end()) {
    auto engines = plan::ParseEngines(found->second, plan::SettingsOf(rules.kind));
    if (!engines.ok()) {
      return Annotate(engines.status(), WhereGiven("engines"));
    }
    values_->engines = *std::move(engines);
  }
  values_->optimizer.kind = rules.kind;
  return absl::OkStatus();
}

absl::Status ConfigBuilder::CheckOptimizer() {
  using Kind = OptimizerConfig::Kind;
  const OptimizerConfig& o = values_->optimizer;
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: optimizer.params.nesterov needs momentum above 0 and dampening 0; got %g and %g",
        WhereGiven("optimizer.params.nesterov"), o.momentum, o.dampening));
  }
  const bool groups_have_rates = HaveRates(o.groups) || EnginesHaveRates(values_->engines) ||
                                 (o.kind == Kind::kMuon && o.adam_lr != o.lr);
  // WarmupCosineLR and WSD take each group's own rate.
  const Json& schedule = values_->at("scheduler.type");
  const bool divides = !schedule.is_null() && schedule != "WarmupCosineLR" && schedule != "WSD";
  if (o.lr == 0 && groups_have_rates && divides) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s uses the ratio of a group's lr to optimizer.params.lr, which is 0; set it "
        "above 0",
        WhereGiven("optimizer.params.lr"), schedule.get<std::string>()));
  }
  if (o.min_coeff > o.max_coeff) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: optimizer.params.min_coeff %g is above max_coeff %g",
                        WhereGiven("optimizer.params.min_coeff"), o.min_coeff, o.max_coeff));
  }
  if (o.bf16_states && !values_->boolean("bf16.enabled")) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: bf16.bf16_optimizer_states needs bf16.enabled; set both to true",
                        WhereGiven("bf16.bf16_optimizer_states")));
  }
  if (o.bf16_states && (o.kind == Kind::kLamb || o.kind == Kind::kMuon)) {
    return absl::UnimplementedError(absl::StrFormat(
        "%s: bf16.bf16_optimizer_states with optimizer.type %s is not supported; allowed: AdamW, "
        "Adam, SGD, Lion, Adagrad",
        WhereGiven("bf16.bf16_optimizer_states"), o.name()));
  }
  const bool by_chance = values_->boolean("bf16.stochastic_rounding");
  if (by_chance && !o.bf16_states) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: bf16.stochastic_rounding rounds states in bf16; set bf16.bf16_optimizer_states too",
        WhereGiven("bf16.stochastic_rounding")));
  }
  const bool adam = o.kind == Kind::kAdamW || o.kind == Kind::kAdam;
  if (by_chance && !adam) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: bf16.stochastic_rounding with optimizer.type %s is not supported; "
                        "allowed: AdamW, Adam",
                        WhereGiven("bf16.stochastic_rounding"), o.name()));
  }
  const bool prescale = values_->boolean("prescale_gradients");
  if (prescale && values_->number("gradient_predivide_factor") != 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: gradient_predivide_factor %g and prescale_gradients, which divides by the number of "
        "ranks, exclude each other; keep one",
        WhereGiven("gradient_predivide_factor"), values_->number("gradient_predivide_factor")));
  }
  DT_RETURN_IF_ERROR(CheckOffload());
  // Half of bf16's spacing is 1/512 of a value: a smaller share never takes from the moment.
  if (o.bf16_states && adam && !by_chance && o.beta2 > 0.996) {
    values_->warnings.push_back(absl::StrFormat(
        "optimizer.params.betas: with bf16.bf16_optimizer_states and beta2 %g the second moment "
        "can grow but not shrink; use 0.99 or less, or bf16.stochastic_rounding",
        o.beta2));
  }
  return absl::OkStatus();
}

absl::Status ConfigBuilder::CheckOffload() const {
  const std::string key = "zero_optimization.offload_optimizer.device";
  const auto device = Value(key).get<std::string>();
  if (device == "none") {
    return absl::OkStatus();
  }
  if (Value("zero_optimization.stage") == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s \"%s\" needs zero_optimization.stage 1, 2 or 3; got 0",
                        WhereGiven(key), key, device));
  }
  if (device == "nvme" && Value("zero_optimization.offload_optimizer.nvme_path").is_null()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s \"nvme\" needs zero_optimization.offload_optimizer.nvme_path, a "
                        "folder on a local disk",
                        WhereGiven(key), key));
  }
  return absl::OkStatus();
}

void ConfigBuilder::FillTypedOptimizer() {
  OptimizerConfig& o = values_->optimizer;
  const auto number = [&](const char* name) {
    return values_->number(std::string(kSection) + name);
  };
  const bool muon = o.kind == OptimizerConfig::Kind::kMuon;
  if (values_->at("optimizer.type") == "Adam" &&
      !values_->boolean("optimizer.params.adam_w_mode")) {
    o.kind = OptimizerConfig::Kind::kAdam;
  }
  o.lr = number(muon ? "muon_lr" : "lr");
  o.adam_lr = muon ? number("adam_lr") : 0;
  o.beta1 = values_->at("optimizer.params.betas")[0].get<double>();
  o.beta2 = values_->at("optimizer.params.betas")[1].get<double>();
  o.eps = number("eps");
  o.weight_decay = number("weight_decay");
  o.momentum = number("momentum");
  o.dampening = number("dampening");
  o.nesterov = values_->boolean("optimizer.params.nesterov");
  o.bias_correction = values_->boolean("optimizer.params.bias_correction");
  o.max_coeff = number("max_coeff");
  o.min_coeff = number("min_coeff");
  o.lr_decay = number("lr_decay");
  o.initial_accumulator_value = number("initial_accumulator_value");
  o.bf16_states = values_->boolean("bf16.bf16_optimizer_states");
  o.skip_unused = values_->boolean("optimizer.skip_unused_parameters");
  o.no_weight_decay = values_->at("optimizer.no_weight_decay").get<std::vector<std::string>>();
}

}  // namespace dtrain
