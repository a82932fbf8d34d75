// Chooses the algorithm of a collective, and defines every size at which one form takes over from
// another. Pure functions of values that are equal on all ranks, so all ranks choose the same.
//
// Bits promised by a reduction over messages:
//   direct  ((x0 + x1) + x2) + ... in rank order, rounded once: the bits of shared memory and of
//           every chunk and bucket size. If the number of ranks is a power of two and rank order
//           was not requested, an all-reduce sums pairwise like doubling and halving.
//   doubling, halving  ((x0 + x1) + (x2 + x3)) + ...: pairs, then pairs of pairs.
//   ring    slice p (SliceOf over the ranks) is x[p+1] + x[p+2] + ... + x[p], ranks modulo the
//           size: the same bits on every rank and in every run of one size, type and number of
//           ranks; other bits for an element that is in another slice.
//
// The costs that decide are measured, and differ from run to run; sums must not. So costs choose
// only among algorithms that give the same bits: direct, doubling and halving if the number of
// ranks is a power of two, and any algorithm where the order does not matter (sums of integers,
// all-gather). A ring of floats has a fixed threshold (kRingRanks). Partial sums never travel in 16
// bits: they would be rounded at each hop.
#pragma once

#include <cstddef>

#include "base/numeric/dtype.h"
#include "comm/call.h"
#include "comm/group.h"

namespace dtrain::comm {

// Messages: bytes of the buffer that are under way at a time, divided over the ranks. Fewer if a
// few ranks sum data from sockets while they are in the cache (ScheduleOptions::slice_bytes).
inline constexpr size_t kDirectChunkBytes = size_t{2} << 20;
// Messages: bytes that a ring passes on at a time; two chunks of a slice are the shortest pipeline.
inline constexpr size_t kRingChunkBytes = size_t{1} << 20;
// Messages: from this many ranks on, a buffer of floats with at least kRingSliceBytes for each of
// them goes round a ring, if they are no power of two. This threshold is not measured.
inline constexpr int kRingRanks = 32;
inline constexpr size_t kRingSliceBytes = 2 * kRingChunkBytes;

// Shared memory: up to here every rank reduces everything itself after one sync, registered or not.
inline constexpr size_t kSmallBytes = size_t{8} << 10;
// Shared memory: up to here this is also best for memory that is not registered, whatever the
// number of ranks.
inline constexpr size_t kStagedByAllBytes = size_t{64} << 10;

// Whether the sum of `header` may be split into partial sums that travel: they are exact, or in
// fp32 or wider and rank order was not requested.
bool PartialSumsMayTravel(const CallHeader& header, bool deterministic);

struct Choice {
  Algorithm algorithm = Algorithm::kDirect;
  bool pairwise = false;  // Direct sums only: ScheduleOptions::pairwise.
};

// The algorithm for a call over messages between `size` ranks. `wanted` other than kAutomatic is
// used if there is such a schedule and the bits allow it.
Choice ChooseAlgorithm(const CallHeader& header, int size, bool deterministic, Algorithm wanted,
                       const LinkCost& cost);

}  // namespace dtrain::comm
