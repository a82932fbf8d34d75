// What moving and summing cost between the ranks of a group, and what a collective costs by each
// algorithm. Pure.
//
// The model: a step in which ranks exchange small messages costs `step_us` (alpha); every further
// message of a rank in it `message_us`; bytes cost by how many ranks a rank speaks to at a time
// (beta), because what a link carries between two may be more than a switch carries among all.
#pragma once

#include <cstddef>

#include "comm/call.h"
#include "comm/group.h"

namespace dtrain::comm {

// The largest of each over two measurements.
LinkCost Slower(const LinkCost& a, const LinkCost& b);

// Microseconds of a collective over messages between `size` ranks; `bytes` are those of its largest
// buffer. REQUIRES: Schedule::HasForm.
double EstimateMicros(CallKind kind, Algorithm algorithm, int size, size_t bytes,
                      const LinkCost& cost);

}  // namespace dtrain::comm
