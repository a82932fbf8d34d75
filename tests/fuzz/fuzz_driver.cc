// Runs a libFuzzer target without libFuzzer: fixed seeds, mutated by a fixed generator, so that
// every run of the tests does the same work. With clang the same target links -fsanitize=fuzzer
// instead of this file and searches for hours.
//
// FuzzSeeds gives well-formed inputs; each is tried as it is, at every truncation of its first
// kilobyte, and through many random mutations. A crash, a sanitizer report or a DT_CHECK fails.
//
//   PROGRAM [iterations [seed]]   (default 300,000 and 1)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/numeric/prng.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutate.h"

namespace {

void Run(const std::string& input) {
  // A copy of the exact size, so that AddressSanitizer catches a read past its end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t iterations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::vector<std::string> seeds = dtrain::FuzzSeeds();
  std::printf("%zu seeds, %llu mutations, generator seed %llu\n", seeds.size(),
              static_cast<unsigned long long>(iterations),  // NOLINT(google-runtime-int)
              static_cast<unsigned long long>(seed));       // NOLINT(google-runtime-int)
  for (const std::string& input : seeds) {
    Run(input);
    for (size_t length = 0; length < input.size() && length < 1024; ++length) {
      Run(input.substr(0, length));
    }
  }
  dtrain::SplitMix64 random(seed);
  for (uint64_t i = 0; i < iterations; ++i) {
    Run(dtrain::MutatedSeed(seeds, random));
  }
  return 0;
}
