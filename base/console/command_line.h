// Common parts of all command-line tools: parsing, help and error messages.
//
// Help shows for every option its allowed values and its default, wrapped to 80 columns. An error
// is one line on stderr and exit code 64; for a misspelt command or option it names the nearest
// one. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace dtrain {

// Reads `arguments` (without the program's name). Gives the exit code if the program is to end now:
// 0 after --help or --version, 64 after a message on stderr. Nothing: the program goes on.
std::optional<int> ParseCommandLine(CLI::App& app, const std::vector<std::string>& arguments);
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// The help of `app`, in the form that ParseCommandLine prints.
std::string HelpText(CLI::App& app);

// Prints a failed command's error on stderr after the name `program`, as one line whatever values
// it names, and gives the exit code.
int EndOf(const char* program, const absl::Status& status);

}  // namespace dtrain
