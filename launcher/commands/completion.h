// Completion of a command line of `dtrain` in a shell, out of the --help of its commands. Pure but
// for the function that gives their texts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/commands/catalog.h"

namespace dtrain::launcher {

// The --help of a command: {"checkpoint", "list"}. "": it has none.
using HelpOf = std::function<std::string(const std::vector<std::string>& command)>;

// The words that can stand in the place of the last one of `words`, which are those after `dtrain`.
// None: a file name can stand there, or what only the user knows.
std::vector<std::string> Complete(const std::vector<std::string>& words,
                                  const std::vector<CommandEntry>& commands, const HelpOf& help_of);

// The script for a shell, "bash" or "zsh", which asks `dtrain complete`; "": another shell.
std::string CompletionScript(const std::string& shell);

}  // namespace dtrain::launcher
