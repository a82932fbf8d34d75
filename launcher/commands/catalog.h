// The catalog of commands: those of the `dtrain` program itself and the programs dtrain-NAME beside
// it, with one line on each. Pure functions and plain values.
#pragma once

#include <string>
#include <vector>

namespace dtrain::launcher {

// A command as a user writes it: "launch", "bench comm".
struct CommandEntry {
  std::string name;
  std::string summary;
};

// The commands of `dtrain` itself, then those of `siblings`, which are program names without
// "dtrain-" ("data", "bench-comm"). Programs that this catalog does not know come last: as with
// git, anybody's dtrain-NAME is a command. Pure.
std::vector<CommandEntry> AllCommands(const std::vector<std::string>& siblings);

// The command as a user types it for a program's name: "bench comm" for dtrain-bench-comm. Pure.
std::string CommandOf(const std::string& sibling);

// The second words of the commands that begin with `group` ("bench": comm, kernels, mfu); empty
// when it is no group. Pure.
std::vector<std::string> MembersOf(const std::string& group,
                                   const std::vector<CommandEntry>& commands);

// The first words of `commands`, each once, in order. Pure.
std::vector<std::string> FirstWords(const std::vector<CommandEntry>& commands);

// The text of `dtrain --help`. Pure.
std::string OverviewText(const std::vector<std::string>& siblings);
// The text of `dtrain GROUP --help`. Pure.
std::string GroupText(const std::string& group, const std::vector<CommandEntry>& commands);

}  // namespace dtrain::launcher
