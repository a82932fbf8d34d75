// Learns which pairs of symbols to merge from words and how often they occur. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/tokenizer/bpe.h"

namespace dtrain::plan {

struct CountedWord {
  std::string bytes;
  int64_t count = 0;
};

// At most `merges_max` merges of pairs that occur `count_min` times, the most frequent pair first;
// of equally frequent ones the one with the lesser ids. Symbols below 256 are bytes; the result of
// the i-th merge is 256 + i. Takes O(n log n) steps for n bytes of words, but for words that
// repeat a pair.
std::vector<BpeMerge> LearnMerges(const std::vector<CountedWord>& words, size_t merges_max,
                                  int64_t count_min);

}  // namespace dtrain::plan
