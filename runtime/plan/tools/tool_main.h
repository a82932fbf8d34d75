// What the command-line tools of this room share: CLI11's errors and a Status become one line on
// stderr and an exit code of the project's table.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "base/status.h"

namespace dtrain::plan {

// Parses; -1: go on, else the exit code (0 after --help, 64 for wrong usage).
inline int ParseCommandLine(CLI::App& app, int argc, char** argv) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return failed->get_name() + ": " + error.what() +
           "; run it with --help to see what is allowed\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {  // CLI11's one way to report, --help included.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return -1;
}

// 0, or the message on stderr and its code.
inline int Finish(const char* program, const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", program, std::string(status.message()).c_str());
  }
  return ExitCodeFor(status);
}

}  // namespace dtrain::plan
