// Which algorithm a collective takes, and every size at which one form takes over from another.
// Pure functions of what all ranks know alike, so all ranks choose the same.
//
// Bits promised by a reduction over messages:
//   direct  ((x0 + x1) + x2) + ... in rank order, rounded once: the bits of shared memory and of
//           every chunk and bucket size.
//   ring    slice p (SliceOf over the ranks) is x[p+1] + x[p+2] + ... + x[p], ranks modulo the
//           size: the same bits on every rank and in every run of one size, type and number of
//           ranks, other bits where an element falls into another slice.
// So a ring reduces only where nobody asked for the order (GroupOptions::deterministic) or where it
// does not matter (sums of integers), and never in 16 bits: its partial sums travel, and would be
// rounded at each hop, or twice as long as fp32. A ring that only moves (all-gather) keeps all
// bits.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "comm/call.h"
#include "comm/group.h"

namespace dtrain::comm {

// Messages: bytes of the buffer that are under way at a time, divided over the ranks.
inline constexpr size_t kDirectChunkBytes = size_t{4} << 20;
// Messages: bytes that a ring passes on at a time; two chunks of a slice are the shortest pipeline.
inline constexpr size_t kRingChunkBytes = size_t{1} << 20;
// Messages: from this many ranks on, a buffer with at least kRingSliceBytes for each of them goes
// round a ring. Measured between 2, 4 and 8 ranks over the loopback interface at 256 KiB to 64 MiB,
// direct takes 0.6 to 1 of a ring's time (bench_comm_allreduce --tcp --ranks N --algorithm ring):
// as many bytes in fewer steps that wait for each other. The ring is for what one host cannot show,
// ranks so many that all sending to all at once overruns the switch; its mark is not measured.
inline constexpr int kRingRanks = 32;
inline constexpr size_t kRingSliceBytes = 2 * kRingChunkBytes;

// Shared memory: up to here every rank reduces everything itself after one sync, registered or not.
inline constexpr size_t kSmallBytes = size_t{8} << 10;
// Shared memory: up to here that is best for memory that is not registered, whatever the number of
// ranks.
inline constexpr size_t kStagedByAllBytes = size_t{64} << 10;

// Whether the sum of `header` may be split into partial sums that travel: they are exact, or fp32
// or wider and nobody asked for rank order.
bool PartialSumsMayTravel(const CallHeader& header, bool deterministic);

// kDirect or kRing for the call over messages between `size` ranks. `wanted` other than kAutomatic
// is followed where the bits allow it.
Algorithm ChooseAlgorithm(const CallHeader& header, int size, bool deterministic, Algorithm wanted);

}  // namespace dtrain::comm
