// Runs a fuzz target on mutations of its seeds: fuzz_X [iterations] [seed].
#include <cstdio>
#include <cstdlib>

#include "base/prng.h"
#include "tests/checkpoint/fuzz.h"

namespace {

// Pieces that parsers trip over.
constexpr const char* kTokens[] = {
    "{",    "}",     "[",           "]",      ",",  ":",   "\"",
    "\\u0", "null",  "1e999",       "-1",     "-0", "0.5", "\xff",
    "//",   "/*",    "true",        "[[[[[[", "\n", " ",   "9223372036854775808",
    "F4",   "shape", "__metadata__"};

std::string Mutate(std::string text, const std::vector<std::string>& seeds,
                   dtrain::SplitMix64& random) {
  const uint64_t edits = 1 + random.Below(6);
  for (uint64_t i = 0; i < edits; ++i) {
    const size_t at = random.Below(text.size() + 1);
    const size_t length = random.Below(1 + std::min<size_t>(text.size() - at, 16));
    switch (random.Below(6)) {
      case 0:
        if (at < text.size()) {
          text[at] = static_cast<char>(random.Next());
        }
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, kTokens[random.Below(std::size(kTokens))]);
        break;
      case 3:
        text.insert(at, text.substr(at, length));
        break;
      case 4:
        text.resize(at);
        break;
      default: {
        const std::string& other = seeds[random.Below(seeds.size())];
        const size_t from = random.Below(other.size() + 1);
        text = text.substr(0, at) + other.substr(from);
      }
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const long iterations = argc > 1 ? std::atol(argv[1]) : 20000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::printf("%ld iterations, seed %llu\n", iterations, static_cast<unsigned long long>(seed));
  const std::vector<std::string> seeds = FuzzSeeds();
  for (const std::string& text : seeds) {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  dtrain::SplitMix64 random(seed);
  for (long i = 0; i < iterations; ++i) {
    const std::string text = Mutate(seeds[random.Below(seeds.size())], seeds, random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  return 0;
}
