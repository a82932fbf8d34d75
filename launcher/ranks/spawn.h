// Starts one rank as a process: own process group, bound to its cores, output to its log files.
//
// The rank dies with the thread that calls Spawn (parent-death signal), so call it from the main
// thread. Descriptors, signal mask and handlers are reset, but for a SIGHUP that is ignored.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain::launcher {

struct SpawnRequest {
  std::string program;                   // A path to execute.
  std::vector<std::string> arguments;    // argv[1...].
  std::string name;                      // argv[0].
  std::vector<std::string> environment;  // "KEY=value".
  std::vector<int> cpus;                 // Empty: not bound.
  int memory_node = -1;                  // NUMA node to take memory from first; -1: any.
  std::string out_path;                  // Appended to; created when missing.
  std::string err_path;
  int token_fd = -1;  // Given to the rank as descriptor kTokenFdInRank, with its own offset.
  // Pipe to which the child writes its process group before it executes the program.
  int guard_fd = -1;
};

inline constexpr int kTokenFdInRank = 3;

// The pid, which is also the process group, once the program has been executed. Errors name the
// program and what failed.
absl::StatusOr<pid_t> Spawn(const SpawnRequest& request);

// Pointers into `texts` and a null, as execve takes arguments and variables.
std::vector<char*> ExecPointers(const std::vector<std::string>& texts);

}  // namespace dtrain::launcher
