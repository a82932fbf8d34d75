// The messages of each rank in a collective over messages. Pure: no memory, no transport, no clock.
//
// A rank's part in a collective is a sequence of steps. In a step it makes all its transfers at the
// same time, waits until they are done, and then reduces once. Between two ranks the messages of
// one direction have the same sizes in the same order on both sides, and no step waits for a later
// one, even if a send ends only when it is received: tests/comm/schedule_test.cc proves both.
//
// A sum may be deferred: it runs while the next step's transfers, which touch none of its memory,
// are moving, so that neither the link nor the core waits for the other.
//
// Direct: every rank sends each slice straight to the rank that reduces it and gets each result
// straight from there: as many bytes as a ring in one hop instead of 2(n-1), summed in rank order.
// The contributions of a chunk travel while the chunk before it is reduced and the results of the
// chunk before that one travel.
// Ring: partial sums go from rank to rank and the results once round again; every rank talks to its
// two neighbours alone. The chunks of a slice follow each other, so a link carries one while the
// rank reduces another.
// Doubling and halving, for powers of two: in step k a rank exchanges with the one whose number
// differs in bit k, all that it has (doubling: fewest steps), or the half of it that the other
// keeps (halving: as many bytes as a ring in 2 log2 n steps, then the results the same way back).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/call.h"
#include "comm/collectives/partition.h"
#include "comm/group.h"

namespace dtrain::comm {

// kScratch: memory of this rank alone, of Schedule::scratch_elements().
enum class Area : uint8_t { kInput, kOutput, kScratch };

// `count` elements from `start` on.
struct Range {
  Area area = Area::kInput;
  size_t start = 0;
  size_t count = 0;
};

struct Message {
  int peer = 0;
  Range range;
};

struct Step {
  std::vector<Message> sends;
  std::vector<Message> receives;
  // The ranges that are summed after the transfers, in this order, into `output`, which may be one
  // of them. Empty: nothing is summed. One: it is copied.
  std::vector<Range> inputs;
  Range output;
  // The inputs are summed in pairs, the sums in pairs again, and so on; all but one are scratch and
  // lose their values.
  bool pairwise = false;
  // The sum may run while the transfers of the next step move.
  bool deferred = false;
  // The sum is over all ranks now: an average is divided, the sum of squares taken.
  bool complete = false;
};

// Bytes from each rank that a direct reduction over sockets sums at a time, while they are in a
// core's cache.
inline constexpr size_t kSliceBytes = size_t{128} << 10;

struct ScheduleOptions {
  // All-reduce and broadcast (in place: kInput is kOutput), reduce-scatter, all-gather, all-to-all.
  CallKind kind = CallKind::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;
  int rank = 0;
  int size = 2;
  int root = -1;
  // Elements of the whole buffer (all-reduce, broadcast) or of one rank's part (the others).
  size_t count = 0;
  size_t element_bytes = 1;
  // A direct all-reduce sums pairwise: the bits of doubling and halving. REQUIRES: a power of two.
  bool pairwise = false;
  // Direct reductions only: bytes under way for each rank, within kDirectChunkBytes for all.
  size_t slice_bytes = kSliceBytes;
};

// Whether the transfers of `next` may begin before those of `now` and its sum have ended: they
// neither send memory that `now` receives or sums, nor receive into memory that it still uses.
// `in_place`: input and output are the same memory.
bool MayBeginDuring(const Step& now, const Step& next, bool in_place);

class Schedule {
 public:
  // REQUIRES: size >= 2, and HasForm of the options.
  explicit Schedule(const ScheduleOptions& options);

  // Whether there is a schedule of this kind and algorithm for so many ranks.
  static bool HasForm(CallKind kind, Algorithm algorithm, int size);

  size_t steps() const { return steps_; }
  size_t scratch_elements() const { return scratch_; }
  // Writes step `index` of this rank to `step`, whose memory is used again. REQUIRES: index <
  // steps().
  void Fill(size_t index, Step& step) const;

 private:
  // Chunks of a ring's reduce-scatter that are under way together.
  static constexpr size_t kRingRooms = 4;

  void PlanRing();
  void PlanDirect();
  void FillDirect(size_t index, Step& step) const;
  void FillDirectAllReduce(size_t chunk, Step& step) const;
  void FillDirectReduceScatter(size_t chunk, Step& step) const;
  void FillDirectAllGather(Step& step) const;
  void FillBroadcast(size_t index, Step& step) const;
  void FillAllToAll(Step& step) const;
  void FillRingAllReduce(size_t index, Step& step) const;
  void FillRingReduceScatter(size_t index, Step& step) const;
  void FillRingAllGather(size_t index, Step& step) const;
  void FillDoublingAllReduce(size_t index, Step& step) const;
  void FillDoublingAllGather(size_t index, Step& step) const;
  void FillHalvingAllReduce(size_t index, Step& step) const;
  // Slices [first, second) that this rank keeps after `rounds` of halving.
  std::pair<int, int> Kept(int rank, size_t rounds) const;
  Range Slices(std::pair<int, int> slices) const;
  // The rank, or its slice, `back` places before this rank in the ring.
  int Behind(size_t back) const;
  int next() const { return (options_.rank + 1) % options_.size; }

  const ScheduleOptions options_;
  size_t chunk_ = 0;   // Elements.
  size_t chunks_ = 0;  // Number of chunks in the buffer, or in a slice.
  size_t steps_ = 0;
  size_t scratch_ = 0;
};

}  // namespace dtrain::comm
