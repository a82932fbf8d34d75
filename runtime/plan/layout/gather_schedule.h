// Decides which buckets of weights ZeRO stage 3 gathers and releases, and when.
//
// A pure state machine: the program's uses of buckets go in, and actions come out. Ranks that use
// the same buckets in the same order get the same actions, whatever the timing, since gathers are
// collectives. A pass is one micro-batch, forward and backward, or one evaluation batch. The first
// pass gathers on demand and records its uses. Later passes of its kind gather ahead along the
// record (prefetch), and release the buckets that are used again last. If a pass leaves the record,
// it goes on on demand and makes a new record. Weights that an operation reads stay until its Done.
//
// A bucket is "live" while it is gathered or being gathered. Sizes are elements. Not thread-safe.
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

// The elements that may be live, divided between trained and frozen weights, which have a schedule
// each. The kind with fewer elements (padding of its buckets included) gets what it needs, up to
// half; the other kind gets the rest.
struct LiveShares {
  int64_t training = 0;
  int64_t frozen = 0;
};
LiveShares ShareLive(int64_t live_max, int64_t training, int64_t frozen);

class GatherSchedule {
 public:
  enum class Pass { kTraining, kEvaluation, kOther };  // kOther is never recorded.

  GatherSchedule(std::vector<int64_t> bucket_elements, const GatherLimits& limits);

  // A pass starts. Uses that the last pass recorded become the record of its kind. REQUIRES:
  // nothing is in use.
  void Begin(Pass pass);
  // The weights changed: nothing is live. REQUIRES: nothing is in use.
  void Invalidate();

  // An operation is about to read `bucket`. Appends the actions to take, in order, to `actions`.
  void Use(int bucket, std::vector<GatherAction>& actions);
  // The operation is over. Called once for each Use.
  void Done(int bucket, std::vector<GatherAction>& actions);

  bool is_live(int bucket) const { return live_[static_cast<size_t>(bucket)] != 0; }
  int64_t live_elements() const { return live_elements_; }

 private:
  // The uses of buckets in an earlier pass, and for each the next use of its bucket.
  struct Record {
    std::vector<int> uses;          // Buckets; no two neighbours are equal.
    std::vector<int64_t> before;    // Elements of the uses before each, and of all.
    std::vector<size_t> next_use;   // By use: the next of its bucket, or kNever.
    std::vector<size_t> first_use;  // By bucket, or kNever.
    bool empty() const { return uses.empty(); }
  };
  static constexpr size_t kNever = SIZE_MAX;
  static constexpr size_t kSkipMax = 64;  // A pass may leave out so many uses and stay on record.

  Record MakeRecord(std::vector<int> uses) const;
  // Finds the use on the record, or leaves the record.
  void Advance(int bucket);
  // Releases buckets that are not in use and whose next use is too far away.
  void ReleaseDistant(int bucket, std::vector<GatherAction>& actions);
  void Gather(int bucket, std::vector<GatherAction>& actions);
  void Release(int bucket, std::vector<GatherAction>& actions);
  // Releases buckets until `elements` more fit, but only buckets that the record needs at `use` or
  // later. False: they do not fit.
  bool MakeRoom(int64_t elements, size_t use, std::vector<GatherAction>& actions);
  // The next bucket to release: on record the live bucket that is needed last, otherwise the one
  // that was used longest ago. -1: none.
  int Victim(size_t use) const;
  void Prefetch(std::vector<GatherAction>& actions);
  int64_t SizeOf(int bucket) const { return sizes_[static_cast<size_t>(bucket)]; }

  const std::vector<int64_t> sizes_;
  const GatherLimits limits_;
  std::vector<uint8_t> live_;      // By bucket.
  std::vector<int> in_use_;        // Uses that are not over.
  std::vector<size_t> next_;       // On record: the next use after the present one, or kNever.
  std::vector<uint64_t> recency_;  // Time of the last use, for passes without a record.
  int64_t live_elements_ = 0;
  uint64_t clock_ = 0;

  std::array<Record, 3> records_;  // By Pass.
  Pass pass_ = Pass::kTraining;
  bool on_record_ = false;
  size_t position_ = kNever;  // The present use on the record; kNever: before the first.
  std::vector<int> uses_;     // The uses in this pass while it is off the record.
};

}  // namespace dtrain::plan
