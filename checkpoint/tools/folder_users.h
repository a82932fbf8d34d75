// Finds the processes of this machine that have a folder open: every rank of a run keeps its folder
// of checkpoints open for as long as it lives. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace dtrain::checkpoint {

struct FolderUser {
  int process = 0;
  std::string program;
};

// The processes, but for this one, that have `folder` itself open. Those of other users can be seen
// only by root, and those of other machines not at all.
std::vector<FolderUser> UsersOf(const std::string& folder);

}  // namespace dtrain::checkpoint
