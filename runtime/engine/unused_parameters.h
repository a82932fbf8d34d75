// Parameters that no rank's loss used in a step: which they are, and the line that says so.
//
// A rank says in the agreement of a step how many it has not used. Only where that is above 0 on
// every rank do the ranks compare which: no step pays for it where some rank uses all. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/group.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain {

class UnusedParameters {
 public:
  // `skips`: updates leave unused ones as they are (optimizer.skip_unused_parameters), and ranks
  // compare them in every step; else until each was looked at once. REQUIRES: `group` and `layout`
  // outlive this object.
  UnusedParameters(comm::Group& group, const plan::ParamLayout& layout, bool skips)
      : group_(group),
        layout_(layout),
        skips_(skips),
        looked_at_(layout.entries().size()),
        said_(layout.entries().size()) {}

  // Takes the entries of the layout that this rank used in the step that ends. Gives what it brings
  // to the agreement: of how many entries it wants to know whether others used them.
  int32_t Note(std::vector<uint8_t> used);
  // Collective when `compares`: when Note gave more than 0 on every rank. Rank 0 names each entry
  // that no rank used in a line of the log, once.
  absl::Status Agree(bool compares, int64_t step);
  // Takes what the ranks found in a step that is replayed, by entry; empty: they used all.
  void Replay(std::vector<uint8_t> unused) { unused_ = std::move(unused); }
  // Whether updates leave entries as they are in the step last agreed on: those of which `unused`.
  bool skipping() const { return skips_ && !unused_.empty(); }
  // REQUIRES: skipping().
  bool unused(size_t entry) const { return unused_[entry] != 0; }
  const std::vector<uint8_t>& all_unused() const { return unused_; }

 private:
  void Say(int64_t step);

  comm::Group& group_;
  const plan::ParamLayout& layout_;
  const bool skips_;
  std::vector<uint8_t> used_;       // By entry, of this rank.
  std::vector<uint8_t> unused_;     // By entry, of all ranks; empty: there are none.
  std::vector<uint8_t> looked_at_;  // By entry: it was unused here when ranks compared.
  std::vector<uint8_t> said_;       // By entry: it was named.
};

}  // namespace dtrain
