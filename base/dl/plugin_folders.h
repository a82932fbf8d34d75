// The folders that are searched for the CUDA plugin: one rule for ranks, benchmarks and `dtrain
// doctor`. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace dtrain {

// Only `named` (DTRAIN_PLUGIN_DIR) unless it is empty. Otherwise the folder of `program` and lib/
// of its tree: programs are in bin/ or, if they need LibTorch, in lib/dtrain/. Empty when `program`
// has no folder. Pure.
std::vector<std::string> PluginFolders(const std::string& named, const std::string& program);

// The same with the program that this process runs (base/system/own_program.h).
std::vector<std::string> PluginFolders(const std::string& named);

}  // namespace dtrain
