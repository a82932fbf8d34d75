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

#include "base/prng.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using dtrain::SplitMix64;

void Run(const std::string& input) {
  // A copy of exactly its size, so that AddressSanitizer sees the first byte past it.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

// One random change: bit, byte, interesting number, cut, insertion, or a splice with `other`.
void Mutate(std::string& input, const std::string& other, SplitMix64& random) {
  static constexpr uint8_t kEdges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  const size_t at = input.empty() ? 0 : random.Below(input.size());
  switch (input.empty() ? 4 : random.Below(7)) {
    case 0:
      input[at] = static_cast<char>(input[at] ^ (1 << random.Below(8)));
      break;
    case 1:
      input[at] = static_cast<char>(random.Below(256));
      break;
    case 2:
      for (size_t i = at; i < input.size() && i < at + 4; ++i) {
        input[i] = static_cast<char>(kEdges[random.Below(sizeof(kEdges))]);
      }
      break;
    case 3:
      input.erase(at, 1 + random.Below(16));
      break;
    case 4:
      input.insert(at, 1 + random.Below(16), static_cast<char>(random.Below(256)));
      break;
    case 5:
      input.resize(at);
      break;
    default:
      input = input.substr(0, at) + other.substr(other.empty() ? 0 : random.Below(other.size()));
  }
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
  SplitMix64 random(seed);
  for (uint64_t i = 0; i < iterations; ++i) {
    std::string input = seeds[random.Below(seeds.size())];
    for (uint64_t change = random.Below(8); change > 0; --change) {
      Mutate(input, seeds[random.Below(seeds.size())], random);
    }
    Run(input);
  }
  return 0;
}
