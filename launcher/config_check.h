// Checks, before anything is moved or started, whether the ranks would refuse their configuration.
// No state; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/job_env.h"
#include "launcher/nodes/world_choice.h"

namespace dtrain::launcher {

struct ElasticWorlds {
  int nodes_min = 1;
  int nodes_max = 1;
  int ranks = 1;  // Ranks on the node.
};

// The arguments of `dtrain config check` for a program with these arguments: FILE --world-size N
// --set KEY=VALUE ... Empty when the arguments name no configuration (a first word NAME.json, or
// --deepspeed_config FILE). Pure.
std::vector<std::string> ConfigurationIn(const std::vector<std::string>& arguments, int world_size);

// InvalidArgument with the message of dtrain-config, in the folder of this program, about the
// configuration in `arguments`. OK also if there is no such program or no configuration: the ranks
// check it anyway. Blocks.
absl::Status CheckConfiguration(const std::vector<std::string>& arguments, int world_size,
                                const Environment& environment);

// The batch that an elastic job keeps, from the configuration that the program would read. Zeros:
// it reads none, or no dtrain-config is there. The sizes are those with the largest number of nodes
// from `nodes_max` down to `nodes_min`, of `ranks` ranks each, that the configuration allows.
// InvalidArgument: it allows none, or a size would follow from the number of ranks.
absl::StatusOr<BatchSizes> ElasticBatch(const std::vector<std::string>& arguments,
                                        const ElasticWorlds& worlds,
                                        const Environment& environment);

// The batch in the output of `dtrain-config check --all`. Pure; errors as above.
absl::StatusOr<BatchSizes> BatchIn(const std::string& checked);

}  // namespace dtrain::launcher
