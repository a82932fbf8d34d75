// A fuzz target has libFuzzer's entry and seeds; fuzz_driver.cc runs it as an ordinary test with
// seeded mutations, and -fsanitize=fuzzer (clang) explores further.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Aborts when a promise of the parser is broken.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// Valid inputs to mutate.
std::vector<std::string> FuzzSeeds();
