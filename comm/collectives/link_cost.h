// The costs of moving and summing between the ranks of a group, and of a collective by each
// algorithm. Pure.
//
// The model: a step in which ranks exchange small messages costs `step_us` (alpha), and every
// further message of a rank in that step `message_us`. The cost of a byte (beta) depends on how
// many ranks a rank exchanges data with at a time, because a link between two ranks may carry more
// than a switch among all.
#pragma once

#include <cstddef>

#include "comm/call.h"
#include "comm/group.h"

namespace dtrain::comm {

// Each cost's larger value of two measurements.
LinkCost Slower(const LinkCost& a, const LinkCost& b);

// Microseconds of a collective over messages between `size` ranks; `bytes` are those of its largest
// buffer. REQUIRES: Schedule::HasForm.
double EstimateMicros(CallKind kind, Algorithm algorithm, int size, size_t bytes,
                      const LinkCost& cost);

}  // namespace dtrain::comm
