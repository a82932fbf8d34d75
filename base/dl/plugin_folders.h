// Where the CUDA plugin is looked for: one rule for ranks, benchmarks and `dtrain doctor`.
#pragma once

#include <string>
#include <vector>

namespace dtrain {

// `named` (DTRAIN_PLUGIN_DIR) alone, unless it is empty. Else the folder of `program`, and lib/ of
// the tree that it is part of: programs are in bin/ and, those that need LibTorch, in lib/dtrain/.
// None when `program` has no folder.
std::vector<std::string> PluginFolders(const std::string& named, const std::string& program);

// With the program that this process runs (base/system/own_program.h).
std::vector<std::string> PluginFolders(const std::string& named);

}  // namespace dtrain
