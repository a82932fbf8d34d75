// The meaning of a ZeRO stage for an engine's memory and buckets: decided here, once. Pure.
#pragma once

#include "dtrain/config.h"

namespace dtrain::plan {

struct ZeroPolicy {
  bool shards_states = false;     // Stages 1 to 3: a rank has the states of what it owns.
  bool shards_gradients = false;  // Stages 2 and 3: no rank has whole gradients.
  bool shards_weights = false;    // Stage 3: weights are gathered when they are read.
  // A rank's part of a bucket is whole norm blocks: where sums, LAMB's norms or int8 blocks go by
  // them, and at stage 3, whose buckets come and go by pages.
  bool owns_whole_blocks = false;

  // Stages 1 and 2: updated weights are gathered at the end of a step.
  bool gathers_updates() const { return shards_states && !shards_weights; }

  static ZeroPolicy Of(const Config& config);
};

}  // namespace dtrain::plan
