// Records the order in which a pass comes to units of weights (EngineOptions::units), so that every
// rank gathers and reduces them at the same places, whichever parts of them it uses.
//
// A pass comes to places: units, buckets outside of units, the begin of backward. A unit ends in
// backward, when no gradient of it can come any more. The first pass of a kind is recorded, and
// every rank must come to every unit in it. In later passes a rank that uses nothing of a unit is
// told to open and end it at the place on the record. A pass that leaves the record makes a new
// one.
//
// A pure state machine; not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "runtime/plan/layout/gather_schedule.h"

namespace dtrain::plan {

// An action that a rank has to take on a unit before it goes on.
struct UnitStep {
  enum class Kind { kOpen, kEnd };
  Kind kind = Kind::kOpen;
  int unit = 0;
  bool operator==(const UnitStep&) const = default;
};

class UnitOrder {
 public:
  using Pass = GatherSchedule::Pass;

  // Places: units from 0, and
  static constexpr int kBackward = -1;
  static constexpr int OfBucket(int bucket) { return -2 - bucket; }

  // A pass starts. Forgets the places since the last End.
  void Begin(Pass pass);
  // This rank comes to `place`. Appends the steps that the record has before that place.
  void Come(int place, std::vector<UnitStep>& steps);
  // Whether the caller must find out which units have ended, before it comes to the next place, and
  // call NoteEnd. If not, the record has the ends.
  bool wants_ends() const { return !on_record_; }
  void NoteEnd(int unit);
  // The pass is over. Appends the steps that the record has after the last place.
  void End(std::vector<UnitStep>& steps);

 private:
  struct Item {
    int place = 0;
    bool is_end = false;  // It ends the unit `place`.
  };
  static constexpr size_t kSkipMax = 256;  // Items that a rank may pass over at a time.

  void AppendSteps(size_t end, std::vector<UnitStep>& steps);

  std::array<std::vector<Item>, 3> records_;  // By Pass; kOther has none.
  std::vector<Item> seen_;                    // The items of this pass while it is off the record.
  Pass pass_ = Pass::kTraining;
  bool on_record_ = false;
  size_t next_ = 0;  // On record: the item after the present place.
};

}  // namespace dtrain::plan
