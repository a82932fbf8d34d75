// A set of a checkpoint's blocks, which are numbered through all files of its manifest: what a rank
// has read and compared with its checksum. A value type; not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::checkpoint {

class BlockSet {
 public:
  // Holds none of `blocks` blocks.
  explicit BlockSet(uint64_t blocks) : has_(blocks) {}

  // REQUIRES here and below: block < the number of blocks.
  void Add(uint64_t block) { has_[block] = true; }
  bool Holds(uint64_t block) const { return has_[block]; }
  // Adds what `other` holds. REQUIRES: it has as many blocks.
  void AddAll(const BlockSet& other);
  // The blocks that it does not hold, ascending.
  std::vector<uint64_t> Missing() const;

  // The blocks as ranges, "0-12,15-16", each without its end. It is short where they lie together.
  std::string Encode() const;
  // InvalidArgument: `text` is not what Encode gives of a set of `blocks` blocks.
  static absl::StatusOr<BlockSet> Parse(absl::string_view text, uint64_t blocks);

 private:
  std::vector<bool> has_;
};

}  // namespace dtrain::checkpoint
