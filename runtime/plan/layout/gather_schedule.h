// Which buckets of weights ZeRO stage 3 gathers and releases, and when.
//
// A pure state machine: what the program uses goes in, actions come out, the same on every rank
// that uses the same buckets in the same order, whatever the timing (gathers are collectives). A
// pass is one micro-batch, forward and backward, or one evaluation batch. The first pass gathers on
// demand and its uses are recorded; later passes of its kind gather ahead along the record
// (prefetch), and release what is used again farthest away. A pass that leaves the record goes on
// on demand and is recorded anew. No use ends before Done: what an operation reads stays.
//
// "Live" is what is gathered, or being gathered. Sizes are elements. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "dtrain/config.h"

namespace dtrain::plan {

struct GatherAction {
  enum class Kind { kGather, kRelease };
  Kind kind = Kind::kGather;
  int bucket = 0;
  bool operator==(const GatherAction&) const = default;
};

// How what may be live in all is parted between weights that train and frozen ones, which have a
// schedule each, of so many elements with the padding of their buckets: the fewer may take half of
// it, the others have the rest.
struct LiveShares {
  int64_t training = 0;
  int64_t frozen = 0;
};
LiveShares ShareLive(int64_t live_max, int64_t training, int64_t frozen);

class GatherSchedule {
 public:
  enum class Pass { kTraining, kEvaluation, kOther };  // kOther is never recorded.

  GatherSchedule(std::vector<int64_t> bucket_elements, const GatherLimits& limits);

  // A pass starts; what the last one recorded is its kind's record. REQUIRES: nothing is in use.
  void Begin(Pass pass);
  // The weights changed: nothing is live. REQUIRES: nothing is in use.
  void Invalidate();

  // An operation is about to read `bucket`. Appends what is to be done, in order, to `actions`.
  void Use(int bucket, std::vector<GatherAction>& actions);
  // It is over: once for each Use.
  void Done(int bucket, std::vector<GatherAction>& actions);

  bool is_live(int bucket) const { return live_[static_cast<size_t>(bucket)] != 0; }
  int64_t live_elements() const { return live_elements_; }

 private:
  // Where a bucket is used in a pass that went before, and where next.
  struct Record {
    std::vector<int> uses;          // Buckets; no two neighbours are equal.
    std::vector<int64_t> before;    // Elements of the uses before each, and of all.
    std::vector<size_t> next_use;   // By use: the next of its bucket, or kNever.
    std::vector<size_t> first_use;  // By bucket, or kNever.
    bool empty() const { return uses.empty(); }
  };
  static constexpr size_t kNever = SIZE_MAX;
  static constexpr size_t kSkipMax = 64;  // Uses that a pass may leave out and still be on record.

  Record MakeRecord(std::vector<int> uses) const;
  // Finds the use on the record, or leaves the record.
  void Advance(int bucket);
  // Releases what is not in use and used again too far away.
  void ReleaseDistant(int bucket, std::vector<GatherAction>& actions);
  void Gather(int bucket, std::vector<GatherAction>& actions);
  void Release(int bucket, std::vector<GatherAction>& actions);
  // Releases until `elements` more fit; only what the record needs at `use` or later. False: they
  // do not fit.
  bool MakeRoom(int64_t elements, size_t use, std::vector<GatherAction>& actions);
  // On record the live bucket that is needed last, else the one that was used longest ago; -1:
  // none.
  int Victim(size_t use) const;
  void Prefetch(std::vector<GatherAction>& actions);
  int64_t SizeOf(int bucket) const { return sizes_[static_cast<size_t>(bucket)]; }

  const std::vector<int64_t> sizes_;
  const GatherLimits limits_;
  std::vector<uint8_t> live_;      // By bucket.
  std::vector<int> in_use_;        // Uses that are not over.
  std::vector<size_t> next_;       // On record: the next use after the present one, or kNever.
  std::vector<uint64_t> recency_;  // When last used: for passes without a record.
  int64_t live_elements_ = 0;
  uint64_t clock_ = 0;

  std::array<Record, 3> records_;  // By Pass.
  Pass pass_ = Pass::kTraining;
  bool on_record_ = false;
  size_t position_ = kNever;  // Of the present use on the record; kNever: before the first.
  std::vector<int> uses_;     // Of this pass while it is off the record.
};

}  // namespace dtrain::plan
