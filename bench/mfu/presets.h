// Published model shapes by name: the config.json files of examples/configs/models, compiled in, so
// that the program finds them wherever it is.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace dtrain::bench {

struct Preset {
  const char* name;  // "gpt2-124m".
  const char* json;  // config.json of Hugging Face.
};

// Made by CMake, sorted by name.
const std::vector<Preset>& Presets();

// "gpt2-124m, llama-1b, ...".
std::string PresetNames();

// InvalidArgument names those that there are.
absl::StatusOr<Json> FindPreset(const std::string& name);

}  // namespace dtrain::bench
