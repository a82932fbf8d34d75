// Documents made from the table of configuration keys. Pure; thread-safe.
#pragma once

#include <string>

#include "base/json.h"

namespace dtrain::plan {

// docs/CONFIG.md, whole.
std::string ConfigMarkdown();
// A JSON Schema (draft 2020-12) of the configuration file, for editors.
Json ConfigSchema();

}  // namespace dtrain::plan
