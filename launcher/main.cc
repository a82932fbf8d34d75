// The `dtrain` program: finds the subcommand and hands over.
#include <cstdio>
#include <string>
#include <vector>

#include "base/job_env.h"
#include "base/system/resource_limits.h"
#include "launcher/commands/commands.h"

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  dtrain::EndWithALineAtLimits();
  return dtrain::launcher::RunDtrain(arguments, dtrain::ReadEnvironment());
}
