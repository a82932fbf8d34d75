// Who keeps a collective from going on, from what the ranks say of themselves. Pure.
//
// A rank that waits knows only whom it waits for, and that one may wait in turn: in a ring, or for
// a third one in its node's memory. So ranks say whom they wait for, and those at the end of the
// chains are the cause: ranks of which nothing is heard, and ranks that have not made the call.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "comm/call.h"

namespace dtrain::comm {

// What a rank says of itself.
struct Whereabouts {
  bool heard = false;  // Else nothing else of it is known.
  bool in_call = false;
  // Of the collective it is in, or of its last one. UINT64_MAX: it is in sends and receives.
  uint64_t sequence = 0;
  CallHeader last = {};  // That collective.
  std::vector<int> awaited = {};
};

struct Missing {
  // In ascending order.
  std::vector<int> silent;     // Nothing was heard of them.
  std::vector<int> elsewhere;  // They are in no call, and have not made that of who waits for them.
  bool none() const { return silent.empty() && elsewhere.empty(); }
};

// Those that rank `self` waits for, or that somebody whom it waits for does, and so on. None:
// everybody there is in a call, and merely slow. REQUIRES: said[self] is this rank's own.
Missing WhoIsMissing(int self, absl::Span<const Whereabouts> said);

}  // namespace dtrain::comm
