// The functions that a fuzz target defines: the one that libFuzzer calls, and one for well-formed
// inputs to start from. The target must return for every input and check its own invariants with
// DT_CHECK.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace dtrain {
std::vector<std::string> FuzzSeeds();
}  // namespace dtrain
