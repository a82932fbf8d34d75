// The decisions of `dtrain train` before it starts anything. Reads folders; no state.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtrain::launcher {

// The configuration of the default training, PREFIX/share/dtrain/configs/gpt.json. NotFound says
// where it looked and what to do.
absl::StatusOr<std::string> DefaultConfig(const std::string& prefix);

// The folders whose headers become the default corpus: `system` (/usr/include) alone when at least
// `bytes_min` of C and C++ headers are there, otherwise also PREFIX/include and LibTorch's `torch`
// ("" when it was not found), as far as they exist. Empty: there is no text here.
std::vector<std::string> CorpusFolders(const std::string& system, const std::string& prefix,
                                       const std::string& torch, int64_t bytes_min);

// Whether a program's arguments name training data of their own (--set data.train=...).
bool NamesData(const std::vector<std::string>& arguments);

}  // namespace dtrain::launcher
