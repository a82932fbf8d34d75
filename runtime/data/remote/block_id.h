// Names a block of a version of an object: the unit in which a remote corpus is read and kept.
#pragma once

#include <cstdint>
#include <utility>

namespace dtrain::remote {

struct BlockId {
  uint64_t object = 0;  // A hash of address, version and the size of blocks.
  int64_t number = 0;
  int64_t bytes = 0;  // The last block of an object is short.

  friend bool operator==(const BlockId& a, const BlockId& b) {
    return a.object == b.object && a.number == b.number;
  }
  template <typename H>
  friend H AbslHashValue(H h, const BlockId& id) {
    return H::combine(std::move(h), id.object, id.number);
  }
};

}  // namespace dtrain::remote
