#include "bench/mfu/presets.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtrain::bench {

std::string PresetNames() {
  return absl::StrJoin(Presets(), ", ",
                       [](std::string* out, const Preset& preset) { out->append(preset.name); });
}

absl::StatusOr<Json> FindPreset(const std::string& name) {
  for (const Preset& preset : Presets()) {
    if (name == preset.name) {
      return ParseJson(preset.json, name);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--preset %s does not exist; there are: %s; other shapes: --hf config.json",
                      name, PresetNames()));
}

}  // namespace dtrain::bench
