// Finds the ranks that keep a collective from going on, from the ranks' reports. Pure.
//
// A rank that waits knows only whom it waits for, and that one may wait in turn: in a ring, or for
// a third one in its node's memory. So ranks say whom they wait for, and those at the end of the
// chains are the cause: ranks that give no answer, and ranks that have not made the call.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "comm/call.h"

namespace dtrain::comm {

// A rank's report.
struct WaitReport {
  bool answered = false;  // False: nothing is known of it.
  bool in_call = false;
  // Sequence number of the collective it is in, or of its last one. UINT64_MAX: it is in sends and
  // receives.
  uint64_t sequence = 0;
  CallHeader last = {};  // The header of that collective.
  std::vector<int> awaited = {};
};

struct Missing {
  // Both lists are in ascending order.
  std::vector<int> silent;  // Ranks that gave no answer.
  // Ranks in no call that have not made the call in which others wait for them.
  std::vector<int> elsewhere;
  bool none() const { return silent.empty() && elsewhere.empty(); }
};

// The missing ranks among those that rank `self` waits for, directly or through others. None: all
// of them are in a call, and merely slow. REQUIRES: reports[self] is this rank's own.
Missing WhoIsMissing(int self, absl::Span<const WaitReport> reports);

}  // namespace dtrain::comm
