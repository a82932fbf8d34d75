// Checks, before anything is moved or started, whether the ranks would refuse their configuration.
// No state; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/job_env.h"

namespace dtrain::launcher {

// The arguments of `dtrain config check` for a program with these arguments: FILE --world-size N
// --set KEY=VALUE ... Empty when the arguments name no configuration (a first word NAME.json, or
// --deepspeed_config FILE). Pure.
std::vector<std::string> ConfigurationIn(const std::vector<std::string>& arguments, int world_size);

// InvalidArgument with the message of dtrain-config, in the folder of this program, about the
// configuration in `arguments`. OK also if there is no such program or no configuration: the ranks
// check it anyway. Blocks.
absl::Status CheckConfiguration(const std::vector<std::string>& arguments, int world_size,
                                const Environment& environment);

}  // namespace dtrain::launcher
