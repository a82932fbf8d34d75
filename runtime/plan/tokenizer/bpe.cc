#include "runtime/plan/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

// Up to here the least rank is sought in a row of ranks, beyond it in a heap.
constexpr size_t kFewSymbols = 64;

uint64_t KeyOf(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }
uint64_t HashOf(uint64_t key) {
  key *= 0x9e3779b97f4a7c15ULL;
  return (key ^ key >> 32) * 0xbf58476d1ce4e5b9ULL;
}

}  // namespace

Bpe::Bpe(BpeParts parts) : parts_(std::move(parts)) {
  const size_t slots = std::bit_ceil(2 * parts_.merges.size() + 2);
  pairs_.resize(slots);
  hash_shift_ = 64 - std::countr_zero(slots);
  const size_t filter_bits = std::max<size_t>(64, 8 * slots);
  filter_.resize(filter_bits / 64);
  filter_shift_ = 64 - std::countr_zero(filter_bits);
  size_t rank = 0;
  for (size_t i = 0; i < parts_.merges.size(); ++i) {
    const BpeMerge& merge = parts_.merges[i];
    if (!parts_.equal_results_share_rank || merge.result != parts_.merges[rank].result) {
      rank = i;
    }
    AddPair(KeyOf(merge.left, merge.right), static_cast<uint32_t>(rank));
  }
}

void Bpe::AddPair(uint64_t key, uint32_t rank) {
  const uint64_t hash = HashOf(key);
  const uint64_t bit = hash >> filter_shift_;
  filter_[bit >> 6] |= uint64_t{1} << (bit & 63);
  size_t slot = hash >> hash_shift_;
  while (pairs_[slot].key != kNoPair && pairs_[slot].key != key) {
    slot = (slot + 1) & (pairs_.size() - 1);
  }
  pairs_[slot] = {key, rank};
}

inline uint32_t Bpe::RankOf(uint32_t left, uint32_t right) const {
  const uint64_t key = KeyOf(left, right);
  const uint64_t hash = HashOf(key);
  const uint64_t bit = hash >> filter_shift_;
  if ((filter_[bit >> 6] >> (bit & 63) & 1) == 0) {
    return kNoRank;
  }
  size_t slot = hash >> hash_shift_;
  while (pairs_[slot].key != key) {
    if (pairs_[slot].key == kNoPair) {
      return kNoRank;
    }
    slot = (slot + 1) & (pairs_.size() - 1);
  }
  return static_cast<uint32_t>(pairs_[slot].rank);
}

void Bpe::FirstSymbols(absl::string_view word, std::vector<uint32_t>* symbols) const {
  bool unknown_waits = false;  // It is added before the next known character.
  const auto add_known = [&](uint32_t id) {
    if (unknown_waits) {
      symbols->push_back(*parts_.unknown);
      unknown_waits = false;
    }
    symbols->push_back(id);
  };
  const auto add_unknown = [&] {
    if (parts_.unknown.has_value()) {
      if (unknown_waits && !parts_.fuse_unknown) {
        symbols->push_back(*parts_.unknown);
      }
      unknown_waits = true;
    }
  };
  const auto byte_id = [&](char c) { return parts_.byte_ids[static_cast<uint8_t>(c)]; };
  if (parts_.bytes_first) {
    for (const char c : word) {
      byte_id(c) != kNoToken ? add_known(byte_id(c)) : add_unknown();
    }
  }
  for (size_t i = 0, begin = 0; !parts_.bytes_first && i < word.size(); begin = i) {
    const auto found = parts_.character_ids.find(NextCodePoint(word, &i));
    if (found != parts_.character_ids.end()) {
      add_known(found->second);
      continue;
    }
    const absl::string_view bytes = word.substr(begin, i - begin);
    if (parts_.byte_fallback &&
        std::all_of(bytes.begin(), bytes.end(), [&](char c) { return byte_id(c) != kNoToken; })) {
      // As in `tokenizers`, an unknown character that waits goes on waiting.
      for (const char c : bytes) {
        symbols->push_back(byte_id(c));
      }
    } else {
      add_unknown();
    }
  }
  if (unknown_waits) {
    symbols->push_back(*parts_.unknown);
  }
}

void Bpe::MergeFew(BpeScratch* scratch) const {
  uint32_t* const symbols = scratch->symbols.data();
  std::array<uint32_t, kFewSymbols> ranks;
  size_t pairs = scratch->symbols.size() - 1;
  for (size_t i = 0; i < pairs; ++i) {
    ranks[i] = RankOf(symbols[i], symbols[i + 1]);
  }
  while (pairs > 0) {
    size_t least = 0;
    for (size_t i = 1; i < pairs; ++i) {
      least = ranks[i] < ranks[least] ? i : least;
    }
    if (ranks[least] == kNoRank) {
      break;
    }
    symbols[least] = parts_.merges[ranks[least]].result;
    std::copy(symbols + least + 2, symbols + pairs + 1, symbols + least + 1);
    std::copy(ranks.data() + least + 1, ranks.data() + pairs, ranks.data() + least);
    --pairs;
    if (least > 0) {
      ranks[least - 1] = RankOf(symbols[least - 1], symbols[least]);
    }
    if (least < pairs) {
      ranks[least] = RankOf(symbols[least], symbols[least + 1]);
    }
  }
  scratch->symbols.resize(pairs + 1);
}

// A heap of (rank, place), in which entries whose pair is gone are found by their rank; a list of
// the symbols that are left.
void Bpe::MergeMany(BpeScratch* scratch) const {
  std::vector<uint32_t>& symbols = scratch->symbols;
  std::vector<uint32_t>& ranks = scratch->ranks;
  std::vector<uint32_t>& next = scratch->next;
  std::vector<uint32_t>& previous = scratch->previous;
  std::vector<uint64_t>& heap = scratch->heap;
  const auto count = static_cast<uint32_t>(symbols.size());
  ranks.assign(count, kNoRank);
  next.resize(count);
  previous.resize(count);
  heap.clear();
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // The first one's is never read.
    if (i + 1 < count) {
      ranks[i] = RankOf(symbols[i], symbols[i + 1]);
      if (ranks[i] != kNoRank) {
        heap.push_back(KeyOf(ranks[i], i));
      }
    }
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto renew = [&](uint32_t i) {
    ranks[i] = next[i] < count ? RankOf(symbols[i], symbols[next[i]]) : kNoRank;
    if (ranks[i] != kNoRank) {
      heap.push_back(KeyOf(ranks[i], i));
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  while (!heap.empty()) {
    const auto rank = static_cast<uint32_t>(heap.front() >> 32);
    const auto i = static_cast<uint32_t>(heap.front());
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (ranks[i] != rank) {
      continue;
    }
    const uint32_t gone = next[i];
    symbols[i] = parts_.merges[rank].result;
    symbols[gone] = kNoToken;
    ranks[gone] = kNoRank;
    next[i] = next[gone];
    if (next[i] < count) {
      previous[next[i]] = i;
    }
    renew(i);
    if (i > 0) {
      renew(previous[i]);
    }
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kNoToken), symbols.end());
}

void Bpe::EncodeWord(absl::string_view word, BpeScratch* scratch,
                     std::vector<uint32_t>* ids) const {
  scratch->cache.AppendTokens(word, ids, [&] { MergeWord(word, scratch, ids); });
}

void Bpe::MergeWord(absl::string_view word, BpeScratch* scratch, std::vector<uint32_t>* ids) const {
  std::vector<uint32_t>& symbols = scratch->symbols;
  symbols.clear();
  const auto whole = parts_.whole_words.find(word);
  if (whole != parts_.whole_words.end()) {
    symbols.push_back(whole->second);
  } else {
    FirstSymbols(word, &symbols);
    if (symbols.size() > kFewSymbols) {
      MergeMany(scratch);
    } else if (symbols.size() > 1) {
      MergeFew(scratch);
    }
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

}  // namespace dtrain::plan
