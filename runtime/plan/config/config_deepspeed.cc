// ConfigBuilder's rules for documents that were written for DeepSpeed: keys that are refused or
// noted, the values of "auto", and sections that are switched off.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status.h"
#include "runtime/plan/config/config_builder.h"

namespace dtrain {
namespace {

using plan::ConfigKey;
using plan::KeyUse;

constexpr size_t kModelBytesMax = size_t{16} << 20;
constexpr int64_t kHiddenMax = int64_t{1} << 24;

// Whether a section says that it is not used. compression_training has its switches one or two
// levels below, in "shared_parameters".
bool IsDisabled(const Json& section) {
  if (!section.is_object()) {
    return false;
  }
  if (const auto enabled = section.find("enabled"); enabled != section.end()) {
    return *enabled == false || *enabled == "auto";
  }
  if (const auto shared = section.find("shared_parameters"); shared != section.end()) {
    return IsDisabled(*shared);
  }
  return std::all_of(section.begin(), section.end(), IsDisabled);
}

}  // namespace

absl::Status ConfigBuilder::CheckSupport() {
  for (const auto& [path, value] : values_->by_key) {
    const ConfigKey* const key = plan::FindConfigKey(path);
    const bool refused = key->use == KeyUse::kRefused;
    if (key->use == KeyUse::kUsed || (refused && IsAuto(path))) {
      continue;
    }
    const Json supported = Json::parse(refused ? key->accepted : "[]");
    const bool disabled = (key->flags & plan::kOffWhenDisabled) != 0 && IsDisabled(value);
    if (disabled && value.contains("enabled") && value["enabled"] == "auto") {
      values_->warnings.push_back(absl::StrFormat("%s: %s.enabled is \"auto\": dtrain takes false",
                                                  WhereGiven(path), path));
    }
    const bool harmless = value == Json::parse(key->default_value) || disabled ||
                          std::find(supported.begin(), supported.end(), value) != supported.end();
    if (harmless) {
      continue;
    }
    if (refused && !IsOff(path)) {
      return absl::UnimplementedError(absl::StrFormat("%s: %s = %s is not supported. %s",
                                                      WhereGiven(path), path,
                                                      plan::ShortJson(value), key->doc));
    }
    is_deepspeeds_ = true;
    const std::string why =
        refused ? absl::StrCat(path.substr(0, path.find('.')), ".enabled is not true.") : key->doc;
    values_->warnings.push_back(absl::StrFormat("%s: %s = %s has no effect. %s", WhereGiven(path),
                                                path, plan::ShortJson(value), why));
  }
  return absl::OkStatus();
}

bool ConfigBuilder::IsOff(absl::string_view path) const {
  for (const char* const section : {"fp16.", "bf16."}) {
    if (absl::StartsWith(path, section)) {
      const std::string enabled = absl::StrCat(section, "enabled");
      return !Given(enabled) || Value(enabled) == false;
    }
  }
  return false;
}

// A document that switches bf16 off may keep the rest of the section.
void ConfigBuilder::DropWhatIsOff() {
  constexpr char kSwitch[] = "bf16.enabled";
  if (values_->by_key.find(kSwitch) == values_->by_key.end() || !IsOff(kSwitch)) {
    return;
  }
  for (const char* const key : {"bf16.bf16_optimizer_states", "bf16.stochastic_rounding"}) {
    if (Given(key) && Value(key) == true) {
      values_->warnings.push_back(absl::StrFormat(
          "%s: %s = true has no effect. bf16.enabled is not true.", WhereGiven(key), key));
      Derive(key, false);
    }
  }
}

// The size of the model that the document describes or names; 0: it does neither.
absl::StatusOr<int64_t> ConfigBuilder::HiddenSize() const {
  const auto given = values_->by_key.find("model");
  Json model = given == values_->by_key.end() ? Json::object() : given->second;
  std::string place = "model";
  for (const char* const key : {"config", "pretrained"}) {
    if (model.contains(key) && model[key].is_string()) {
      const auto named = model[key].get<std::string>();
      for (const std::string& file : {named, absl::StrCat(named, "/config.json")}) {
        const auto text = ReadFile(file, kModelBytesMax);
        const auto shape = text.ok() ? ParseJson(*text, file) : text.status();
        if (shape.ok() && shape->is_object()) {  // The program itself reports a broken file.
          place = file;
          Json merged = *shape;
          merged.update(model);
          model = std::move(merged);
          break;
        }
      }
    }
  }
  for (const char* const key : {"hidden_size", "n_embd"}) {
    if (!model.contains(key) || model[key].is_null()) {
      continue;
    }
    const absl::StatusOr<int64_t> size = JsonInteger(model[key]);
    if (!size.ok() || *size < 1 || *size > kHiddenMax) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s.%s is %s; want an integer from 1 to 2^24, or a number instead of \"auto\" in "
          "zero_optimization",
          place, key, plan::ShortJson(model[key])));
    }
    return *size;
  }
  return int64_t{0};
}

void ConfigBuilder::SetWhy(absl::string_view key, const std::string& why) {
  if (const auto found = autos_.find(key); found != autos_.end()) {
    found->second.why = why;
  }
}

void ConfigBuilder::SayAutos() {
  for (const auto& [path, taken] : autos_) {
    if (plan::FindConfigKey(path)->use == KeyUse::kIgnored) {
      continue;  // Its note says that it has no effect.
    }
    is_deepspeeds_ = true;
    const Json& value = Value(path);
    const std::string why =
        !taken.why.empty() ? taken.why
        : absl::StartsWith(path, "optimizer.params.")
            ? absl::StrCat("the default of ", Value("optimizer.type").get<std::string>())
            : "the default";
    values_->warnings.push_back(
        absl::StrFormat("%s: %s is \"auto\": dtrain takes %s, %s", taken.where, path,
                        value.is_null() ? "none" : plan::ShortJson(value), why));
  }
}

// Only newer releases of DeepSpeed clip by default, so a document for DeepSpeed without the key may
// mean either.
void ConfigBuilder::SayClipping() {
  if (is_deepspeeds_ && values_->origins.at("gradient_clipping") == ConfigOrigin::kDefault) {
    values_->warnings.push_back(absl::StrFormat(
        "%s: gradient_clipping is not set: gradients are clipped to a norm of %s, which older "
        "releases of DeepSpeed do not do; set it to 0 to turn clipping off",
        values_->file_name, plan::ShortJson(Value("gradient_clipping"))));
  }
}

}  // namespace dtrain
