// The command line of a training program. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/job.h"

namespace dtrain {

struct ProgramArguments {
  JobOptions options;
  bool help = false;
};

// Parses argv[1..]; argv[0] is the program. An unknown flag is InvalidArgument naming what is
// allowed.
absl::StatusOr<ProgramArguments> ParseProgramArguments(const std::vector<std::string>& argv);

// The text that --help prints; `about` is the program's own part, whole lines or nothing.
std::string ProgramHelp(const std::string& program, const std::string& about = "");

}  // namespace dtrain
