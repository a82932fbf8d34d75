#include "tests/fuzz/mutate.h"

#include <cstdint>
#include <iterator>

namespace dtrain {
namespace {

constexpr uint8_t kEdges[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
constexpr const char* kPieces[] = {"{",
                                   "}",
                                   "[",
                                   "]",
                                   ",",
                                   ":",
                                   "\"",
                                   "\\u0000",
                                   "null",
                                   "true",
                                   "nan",
                                   "-0",
                                   "-1",
                                   "0.5",
                                   "5e8",
                                   "1e308",
                                   "1e999",
                                   "9223372036854775808",
                                   "//",
                                   "/*",
                                   "[[[[[[",
                                   "\n",
                                   "\xff",
                                   "99999999999999999999",
                                   "\"auto\"",
                                   "F4",
                                   "shape",
                                   "\"stage\"",
                                   "\"optimizer\"",
                                   "__metadata__"};

void MutateOnce(std::string& input, const std::string& other, SplitMix64& random) {
  const size_t at = random.Below(input.size() + 1);
  const bool at_end = at == input.size();
  switch (random.Below(8)) {
    case 0:
      if (!at_end) {
        input[at] = static_cast<char>(input[at] ^ (1 << random.Below(8)));
      }
      break;
    case 1:
      if (!at_end) {
        input[at] = static_cast<char>(random.Below(256));
      }
      break;
    case 2:
      for (size_t i = at; i < input.size() && i < at + 4; ++i) {
        input[i] = static_cast<char>(kEdges[random.Below(std::size(kEdges))]);
      }
      break;
    case 3:
      input.erase(at, 1 + random.Below(16));
      break;
    case 4:
      input.insert(at, input.substr(at, 1 + random.Below(16)));
      break;
    case 5:
      input.insert(at, kPieces[random.Below(std::size(kPieces))]);
      break;
    case 6:
      input.resize(at);
      break;
    default:
      input = input.substr(0, at) + other.substr(random.Below(other.size() + 1));
  }
}

}  // namespace

std::string MutatedSeed(const std::vector<std::string>& seeds, SplitMix64& random) {
  std::string input = seeds[random.Below(seeds.size())];
  for (uint64_t change = random.Below(8); change > 0; --change) {
    MutateOnce(input, seeds[random.Below(seeds.size())], random);
  }
  return input;
}

}  // namespace dtrain
