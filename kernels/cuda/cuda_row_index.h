// How a norm's rows lie over the threads of a GPU: by a whole block, or by teams of a part of a
// warp, of which a block has several. Plain arithmetic that a test on the CPU shares. Private to
// this room.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cuda_index.h"
#include "kernels/cuda/row_chunks.h"

namespace dtrain::kernels {

// Where `team` is 0 a block has a row, as RowWay says. Else each `team` neighbouring threads of it
// have one: they add up by shuffles and wait for nobody, and narrow rows leave no thread idle.
constexpr unsigned kTeamBlock = 256;
struct RowPlan {
  int lanes;
  int steps;
  unsigned threads;
  int team;

  // Rows that a block has at once.
  constexpr unsigned rows() const { return team > 0 ? threads / static_cast<unsigned>(team) : 1; }
};

constexpr RowPlan RowPlanOf(int64_t hidden, bool aligned) {
  const RowWay block = RowWayOf(hidden, aligned);
  constexpr int64_t kStep = 32 * kWidth;  // Elements that a warp takes at once.
  if (block.lanes == kWidth && hidden <= kStep / 2) {
    return {kWidth, 1, kTeamBlock, 16};
  }
  if (block.lanes == kWidth && hidden <= 3 * kStep) {
    // Two steps have no kernel of their own: there are kernels enough.
    return {kWidth, hidden <= kStep ? 1 : 3, kTeamBlock, 32};
  }
  return {block.lanes, block.steps, block.threads, 0};
}

// Blocks of a forward, and of a backward: that many rows of the workspace.
constexpr int64_t RowBlocks(const RowPlan& plan, int64_t tokens) {
  return (tokens + plan.rows() - 1) / plan.rows();
}
constexpr int64_t RowBlocksOfBackward(const RowPlan& plan, int64_t tokens, int64_t hidden) {
  return std::min(RowChunksCuda(tokens, hidden), RowBlocks(plan, tokens));
}

}  // namespace dtrain::kernels
