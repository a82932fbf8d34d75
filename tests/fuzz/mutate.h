// Random damage to well-formed input, for the fuzz driver and for property tests of parsers. Pure.
#pragma once

#include <string>
#include <vector>

#include "base/numeric/prng.h"

namespace dtrain {

// One of `seeds` after up to seven changes: bits, bytes, edge values, cuts, repeats, pieces of JSON
// that parsers trip over, splices with another seed. REQUIRES: `seeds` is not empty.
std::string MutatedSeed(const std::vector<std::string>& seeds, SplitMix64& random);

}  // namespace dtrain
