// Byte pair encoding of one word: which symbols it begins with, and which pairs are merged.
//
// Immutable after Create; thread-safe, with a BpeScratch for each thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/tokenizer/word_cache.h"

namespace dtrain::plan {

inline constexpr uint32_t kNoToken = UINT32_MAX;

struct BpeMerge {
  uint32_t left;
  uint32_t right;
  uint32_t result;
};

// The content of a model file. Merges are in the order of their ranks; of equal pairs the last
// counts.
struct BpeParts {
  // The tokens of single bytes, or kNoToken: those that words begin with (bytes_first), else those
  // that a character without a token falls back to (byte_fallback).
  std::array<uint32_t, 256> byte_ids;
  bool bytes_first = false;
  bool byte_fallback = false;
  // The tokens of single characters, unless bytes_first.
  absl::flat_hash_map<uint32_t, uint32_t> character_ids;
  // The token that stands for a byte or character without one; nullopt: it is left out.
  std::optional<uint32_t> unknown;
  bool fuse_unknown = false;
  std::vector<BpeMerge> merges;
  // Merges with one result follow each other and have one rank: of several in a word the leftmost
  // comes first, as in SentencePiece.
  bool equal_results_share_rank = false;
  // Words that are one token, whatever the merges make of them.
  absl::flat_hash_map<std::string, uint32_t> whole_words;
};

// The buffers that a thread needs to encode words; not thread-safe.
struct BpeScratch {
  WordCache cache;
  std::vector<uint32_t> symbols;
  std::vector<uint32_t> ranks;  // The rank of the pair that begins at a symbol.
  std::vector<uint32_t> next;
  std::vector<uint32_t> previous;
  std::vector<uint64_t> heap;
};

class Bpe {
 public:
  explicit Bpe(BpeParts parts);

  // Appends the tokens of `word`, which is UTF-8 or, with bytes_first, any bytes. O(n log n).
  void EncodeWord(absl::string_view word, BpeScratch* scratch, std::vector<uint32_t>* ids) const;

 private:
  struct Pair {
    uint64_t key = kNoPair;
    uint64_t rank = 0;
  };
  static constexpr uint64_t kNoPair = UINT64_MAX;
  static constexpr uint32_t kNoRank = UINT32_MAX;

  void AddPair(uint64_t key, uint32_t rank);
  uint32_t RankOf(uint32_t left, uint32_t right) const;
  void FirstSymbols(absl::string_view word, std::vector<uint32_t>* symbols) const;
  void MergeWord(absl::string_view word, BpeScratch* scratch, std::vector<uint32_t>* ids) const;
  void MergeFew(BpeScratch* scratch) const;
  void MergeMany(BpeScratch* scratch) const;

  BpeParts parts_;
  std::vector<Pair> pairs_;       // A hash table with linear probing, half empty at least.
  std::vector<uint64_t> filter_;  // One bit a hash: most pairs of a text are no merge.
  int hash_shift_ = 0;
  int filter_shift_ = 0;
};

}  // namespace dtrain::plan
