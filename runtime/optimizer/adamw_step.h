// AdamW on one piece: a rule of its own, and Muon's for what is no hidden matrix.
#pragma once

#include "runtime/optimizer/update_rule.h"

namespace dtrain {

// States 0 and 1 are the moments.
void AdamWStep(const OptimizerConfig& optimizer, const UpdateStep& step, const UpdatePiece& piece,
               const PieceMemory& memory);

}  // namespace dtrain
