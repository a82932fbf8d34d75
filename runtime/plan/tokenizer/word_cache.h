// Remembers the tokens of short words. Text repeats few words often, and to find one here is many
// times faster than to merge its bytes. The size is fixed; a new word displaces an older one. Not
// thread-safe: each thread has its own.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtrain::plan {

class WordCache {
 public:
  static constexpr size_t kWordBytesMax = 32;
  static constexpr size_t kTokensMax = 7;

  // A word as it is compared: all of its bytes in four numbers, and their hash.
  struct Key {
    std::array<uint64_t, 4> parts{};
    uint32_t length = 0;
    uint32_t slot = 0;
  };

  // One cache line.
  struct alignas(64) Entry {
    std::array<uint64_t, 4> parts;
    uint16_t length;  // Bytes; 0: the entry is empty.
    uint16_t count;
    std::array<uint32_t, kTokensMax> ids;
  };

  WordCache() : entries_(kSlots) {}

  // REQUIRES: 1 to kWordBytesMax bytes. Reads of 4 or 8 bytes overlap, so that none goes beyond.
  static Key KeyOf(absl::string_view word) {
    const char* const p = word.data();
    const size_t n = word.size();
    Key key;
    key.length = static_cast<uint32_t>(n);
    if (n >= 16) {
      key.parts = {Read<uint64_t>(p), Read<uint64_t>(p + 8), Read<uint64_t>(p + n - 16),
                   Read<uint64_t>(p + n - 8)};
    } else if (n >= 8) {
      key.parts = {Read<uint64_t>(p), Read<uint64_t>(p + n - 8), 0, 0};
    } else if (n >= 4) {
      key.parts = {Read<uint32_t>(p) | uint64_t{Read<uint32_t>(p + n - 4)} << 32, 0, 0, 0};
    } else {
      key.parts = {uint64_t{Read<uint8_t>(p)} | uint64_t{Read<uint8_t>(p + n / 2)} << 8 |
                       uint64_t{Read<uint8_t>(p + n - 1)} << 16,
                   0, 0, 0};
    }
    uint64_t hash = (key.parts[0] ^ n) * 0x9e3779b97f4a7c15ULL;
    hash = ((hash ^ hash >> 32) + key.parts[1]) * 0xbf58476d1ce4e5b9ULL;
    if (n >= 16) {
      hash = ((hash ^ hash >> 29) + key.parts[2]) * 0x94d049bb133111ebULL;
      hash = ((hash ^ hash >> 32) + key.parts[3]) * 0x9e3779b97f4a7c15ULL;
    }
    key.slot = static_cast<uint32_t>(hash >> (64 - kSlotBits));
    return key;
  }

  // Appends the tokens of `word` to `ids`. `encode` appends them when the word is not here.
  template <typename Encode>
  void AppendTokens(absl::string_view word, std::vector<uint32_t>* ids, const Encode& encode) {
    if (word.empty()) {
      return;
    }
    if (word.size() > kWordBytesMax) {
      encode();
      return;
    }
    const Key key = KeyOf(word);
    if (const Entry* entry = Find(key); entry != nullptr) {
      ids->insert(ids->end(), entry->ids.begin(), entry->ids.begin() + entry->count);
      return;
    }
    const size_t before = ids->size();
    encode();
    Add(key, absl::MakeConstSpan(*ids).subspan(before));
  }

 private:
  // nullptr: the word is not here.
  const Entry* Find(const Key& key) const {
    for (const uint32_t slot : {key.slot, key.slot ^ 1}) {
      const Entry& entry = entries_[slot];
      if (entry.length == key.length && entry.parts == key.parts) {
        return &entry;
      }
    }
    return nullptr;
  }

  // The word that was found or added before moves to the neighbour, whose word is forgotten.
  void Add(const Key& key, absl::Span<const uint32_t> ids) {
    if (ids.size() > kTokensMax) {
      return;
    }
    Entry& entry = entries_[key.slot];
    entries_[key.slot ^ 1] = entry;
    entry.parts = key.parts;
    entry.length = static_cast<uint16_t>(key.length);
    entry.count = static_cast<uint16_t>(ids.size());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

  static constexpr int kSlotBits = 16;
  static constexpr size_t kSlots = size_t{1} << kSlotBits;  // 4 MiB.

  template <typename T>
  static T Read(const char* p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }

  std::vector<Entry> entries_;
};

}  // namespace dtrain::plan
