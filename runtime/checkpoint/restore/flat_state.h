// What the ranks of a checkpoint have stored as ranges of the flat layout: optimizer states, and
// masters where the run that saved it computed in 2 bytes. Elements have the same places at every
// precision, so a run of another one finds them.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/numeric/dtype.h"
#include "runtime/checkpoint/restore/restore_reads.h"
#include "runtime/checkpoint/restore/stored_weights.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/layout/layout.h"

namespace dtrain {

// The type of the weights in the run that saved `layout_hash`, if nothing else differs between its
// layout and this one; else none: it had another model. Pure.
std::optional<DType> StoredPrecision(const plan::ParamLayout& layout,
                                     absl::string_view layout_hash);

// Asks each rank's file only for what this rank owns, straight to where it keeps it. States of
// another float type are converted, and added to `converted`. Masters are not asked for where
// `saved`, the type of the stored weights, is fp32: the weights are the masters there
// (ReadMasters). DataLoss: the records of the ranks are not valid, or lack elements.
absl::Status ReadUpdateState(const EngineState& state, const std::string& engine, DType saved,
                             RestoreReads& reads, Conversions& converted);

// Asks for the masters of all weights that this rank keeps and that updates change, to be the
// weights: exactly in fp32, else rounded. Errors as of ReadUpdateState. REQUIRES: the stored
// weights have 2 bytes.
absl::Status ReadWeightsFromMasters(const EngineState& state, const std::string& engine,
                                    RestoreReads& reads);

}  // namespace dtrain
