// The environment variables that `dtrain launch` sends to the hosts on which it starts agents.
// Variables travel by full names in a message; no shell reads them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"

namespace dtrain::launcher {

// The variables of `environment` whose names begin with NCCL_, DTRAIN_, OMP_ or UCX_ but those that
// a launcher sets for one rank; then those of `files`, texts of NAME=VALUE lines; then `exports`,
// NAME=VALUE or the NAME of a variable in `environment`. Later ones win. InvalidArgument: a text of
// another form, no name of a variable, or a NAME that is not set. Pure.
absl::StatusOr<Environment> ExportedEnvironment(const Environment& environment,
                                                const std::vector<std::string>& files,
                                                const std::vector<std::string>& exports);

// The contents of DeepSpeed's environment files: .deepspeed_env, or what DS_ENV_FILE names, in the
// home folder and then in the working directory. Files that do not exist are left out.
absl::StatusOr<std::vector<std::string>> ReadEnvironmentFiles(const Environment& environment);

// `value`, or "(hidden)" when the variable's name says that it is a secret. Pure.
std::string Shown(absl::string_view name, absl::string_view value);

}  // namespace dtrain::launcher
