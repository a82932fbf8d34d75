#include "runtime/plan/tokenizer/train_pairs.h"

#include <algorithm>
#include <queue>

#include "absl/container/flat_hash_map.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kBytes = 256;

using PairKey = uint64_t;
PairKey PairOf(uint32_t left, uint32_t right) { return PairKey{left} << 32 | right; }

struct Candidate {
  int64_t count;
  PairKey pair;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  explicit Learner(const std::vector<CountedWord>& words) {
    words_.reserve(words.size());
    for (const CountedWord& word : words) {
      const auto index = static_cast<uint32_t>(words_.size());
      Word& made = words_.emplace_back();
      made.count = word.count;
      for (const char byte : word.bytes) {
        made.symbols.push_back(static_cast<uint8_t>(byte));
      }
      for (size_t i = 0; i + 1 < made.symbols.size(); ++i) {
        Change(PairOf(made.symbols[i], made.symbols[i + 1]), word.count, index);
      }
    }
    for (const auto& [pair, state] : pairs_) {
      heap_.push({state.count, pair});
    }
  }

  std::vector<BpeMerge> Learn(size_t merges_max, int64_t count_min) {
    std::vector<BpeMerge> merges;
    while (merges.size() < merges_max && !heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      const int64_t count = pairs_[best.pair].count;
      if (count != best.count) {  // It became rarer since it was pushed.
        if (count >= count_min) {
          heap_.push({count, best.pair});
        }
        continue;
      }
      if (count < count_min) {
        break;
      }
      const BpeMerge merge{static_cast<uint32_t>(best.pair >> 32), static_cast<uint32_t>(best.pair),
                           kBytes + static_cast<uint32_t>(merges.size())};
      merges.push_back(merge);
      Apply(merge);
    }
    return merges;
  }

 private:
  struct Word {
    std::vector<uint32_t> symbols;
    int64_t count = 0;
  };
  struct PairState {
    int64_t count = 0;
    std::vector<uint32_t> words;  // Those that have had the pair; some more than once.
  };

  void Change(PairKey pair, int64_t count, uint32_t word) {
    PairState& state = pairs_[pair];
    state.count += count;
    if (count > 0 && (state.words.empty() || state.words.back() != word)) {
      state.words.push_back(word);
    }
  }

  void Apply(const BpeMerge& merge) {
    std::vector<uint32_t> words = std::move(pairs_[PairOf(merge.left, merge.right)].words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    changed_.clear();
    for (const uint32_t index : words) {
      ApplyTo(index, merge);
    }
    pairs_.erase(PairOf(merge.left, merge.right));
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const PairKey pair : changed_) {
      heap_.push({pairs_[pair].count, pair});
    }
  }

  void ApplyTo(uint32_t index, const BpeMerge& merge) {
    Word& word = words_[index];
    std::vector<uint32_t>& symbols = word.symbols;
    size_t out = 0;
    for (size_t i = 0; i < symbols.size(); ++out) {
      if (i + 1 == symbols.size() || symbols[i] != merge.left || symbols[i + 1] != merge.right) {
        symbols[out] = symbols[i++];
        continue;
      }
      if (out > 0) {
        Change(PairOf(symbols[out - 1], merge.left), -word.count, index);
        Change(PairOf(symbols[out - 1], merge.result), word.count, index);
        changed_.push_back(PairOf(symbols[out - 1], merge.result));
      }
      if (i + 2 < symbols.size()) {
        Change(PairOf(merge.right, symbols[i + 2]), -word.count, index);
        Change(PairOf(merge.result, symbols[i + 2]), word.count, index);
        changed_.push_back(PairOf(merge.result, symbols[i + 2]));
      }
      symbols[out] = merge.result;
      i += 2;
    }
    symbols.resize(out);
  }

  std::vector<Word> words_;
  absl::flat_hash_map<PairKey, PairState> pairs_;
  std::priority_queue<Candidate> heap_;
  std::vector<PairKey> changed_;  // Pairs that the last merge has made.
};

}  // namespace

std::vector<BpeMerge> LearnMerges(const std::vector<CountedWord>& words, size_t merges_max,
                                  int64_t count_min) {
  return Learner(words).Learn(merges_max, std::max<int64_t>(1, count_min));
}

}  // namespace dtrain::plan
