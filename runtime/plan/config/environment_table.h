// The one list of the environment variables that dtrain reads or sets. docs/ENVIRONMENT.md is made
// from it, and tests/tidy compares it with the names in the code. Thread-safe; never changes.
#pragma once

#include "absl/types/span.h"

namespace dtrain::plan {

enum class VariableGroup {
  kUser,      // People set them for a run.
  kRank,      // Launchers set them for each rank.
  kLibrary,   // dtrain sets them for libraries that it uses.
  kDeveloper  // ./dev, the build, tests and benchmarks.
};

struct EnvironmentVariable {
  VariableGroup group;
  const char* name;
  const char* user;           // The program that reads it, or sets it for another.
  const char* allowed;        // Values.
  const char* default_value;  // The value while it is not set.
  const char* meaning;        // Full sentences.
};

absl::Span<const EnvironmentVariable> EnvironmentVariables();

}  // namespace dtrain::plan
