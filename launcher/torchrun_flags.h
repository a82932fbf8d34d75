// Flags of torchrun and DeepSpeed that `dtrain launch` has no use for, or spells in another way.
// Each is answered by name: taken for the flag that means the same, accepted with a note, or
// refused with what to do instead. The variables PET_*, by which torchrun's flags can be given too.
// Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/job_env.h"
#include "launcher/options.h"

namespace CLI {
class App;
}

namespace dtrain::launcher {

// This launcher's flag for a name of DeepSpeed's, and otherwise `name` itself. Without dashes.
std::string OwnFlag(const std::string& name);

// Why the flag `name` of another launcher is refused, and what to use instead; "": it is not.
std::string WhyRefused(const std::string& name);

// The names of all flags of `app`, without dashes.
std::vector<std::string> FlagNames(const CLI::App& app);

// PET_<FLAG>=value of the environment as flags, as CLI11 knows them. Appends a note for a variable
// that looks misspelt. InvalidArgument: a switch has another value than 0 or 1, or is refused.
absl::StatusOr<std::vector<std::string>> EnvironmentFlags(const CLI::App& app,
                                                          const Environment& environment,
                                                          ParsedLaunch& parsed);

// Adds the flags that are accepted and change nothing. --help does not show them. REQUIRES: `app`
// has all other flags.
void AddTorchrunFlags(CLI::App& app);

// Appends a note for each flag that was given and changes nothing. InvalidArgument: torchrun would
// not take its value either. REQUIRES: `app` has parsed.
absl::Status CheckTorchrunFlags(const CLI::App& app, ParsedLaunch& parsed);

// Fills the times from the value of --rdzv-conf, and appends a note for each key of torchrun that
// changes nothing. InvalidArgument names the known key nearest to an unknown one.
absl::Status ReadRendezvousConf(const std::string& pairs, ParsedLaunch& parsed);

}  // namespace dtrain::launcher
