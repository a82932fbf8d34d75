// The places of LAMB's sums, one for each norm block of each parameter, for the host's and the
// device's rule. Those of one parameter lie side by side. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/optimizer/grad_norm.h"
#include "runtime/optimizer/update_pieces.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain {

class LambBlocks {
 public:
  // `layout` must outlive it.
  explicit LambBlocks(const plan::ParamLayout& layout) : layout_(layout) {
    for (const plan::LayoutEntry& entry : layout.entries()) {
      first_.push_back(total_);
      total_ += kernels::NormBlocks(entry.offset, entry.elements);
    }
  }
  int64_t total() const { return total_; }
  // The first block of a parameter, and how many it has.
  int64_t first(size_t entry) const { return first_[entry]; }
  int64_t count(size_t entry) const {
    return kernels::NormBlocks(layout_.entries()[entry].offset, layout_.entries()[entry].elements);
  }
  // The block of the first element of a piece.
  int64_t of(const UpdatePiece& piece) const {
    const auto entry = static_cast<size_t>(piece.entry);
    return first_[entry] + piece.flat / kernels::kNormBlock -
           layout_.entries()[entry].offset / kernels::kNormBlock;
  }

 private:
  const plan::ParamLayout& layout_;
  int64_t total_ = 0;
  std::vector<int64_t> first_;  // By entry.
};

}  // namespace dtrain
