// The elements that an engine's update takes, step by step: which ones this rank updates, bucket by
// bucket and with which settings, without the parameters that a step leaves out. Host and GPU share
// it. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "dtrain/job.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/unused_parameters.h"
#include "runtime/optimizer/engine_settings.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/state_stream.h"
#include "runtime/optimizer/update_pieces.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {

// The pieces of each bucket.
using BucketPieces = std::vector<std::vector<UpdatePiece>>;

class UpdatePlan {
 public:
  // REQUIRES: `job` and `state` outlive this object; the layout of `state` is known.
  UpdatePlan(Job& job, EngineState& state, SettledSettings engine, UpdateGroups groups);

  // This rank updates `owned`, which travels as one bucket.
  void AddBucket(const plan::OwnedRange& owned);

  // `used`: by entry of the layout, whether this rank's loss used it in the step that ends. Gives
  // StepVote::unused_parameters.
  int32_t NoteUsed(std::vector<uint8_t> used) { return unused_.Note(std::move(used)); }
  // Collective: finds what no rank used in the step that ends, which its update may leave out.
  absl::Status TakeUnused(const StepVerdict& verdict);
  // Says what the update leaves out, by entry, as TakeUnused found it; empty: it takes all pieces.
  std::vector<uint8_t> left_out() const;
  // The same of a step that is replayed.
  void Replay(std::vector<uint8_t> left_out);

  // The pieces that this step updates.
  const BucketPieces& pieces() const { return skips() ? used_pieces_ : pieces_; }
  size_t buckets() const { return pieces_.size(); }
  // These hold for the engine as a whole.
  const SettledSettings& engine() const { return engine_; }
  // Its learning rate for the update that comes next, before groups.
  double learning_rate() const;
  const std::vector<ParamSettings>& settings() const { return groups_.settings; }
  // Patterns of no_weight_decay that name no parameter of this engine.
  const std::vector<std::string>& unmatched_decay() const { return groups_.unmatched_decay; }

  // The pieces that travel between far states and the update, which `rule` leaves to its Update,
  // cut by `cut`. All calls give the same rule and cutter. Stays until the next call.
  using Cut = absl::FunctionRef<std::vector<StateChunk>(const BucketPieces& pieces)>;
  const std::vector<StateChunk>& Chunks(const UpdateRule& rule, Cut cut);

  // The numbers of the update that comes next. `gradient_scale` unscales and clips.
  UpdateStep StepOf(double gradient_scale) const;
  // The step has changed weights.
  void Count();

 private:
  bool skips() const { return unused_.skipping(); }
  void ChoosePieces();

  Job& job_;
  EngineState& state_;
  const SettledSettings engine_;
  const UpdateGroups groups_;
  UnusedParameters unused_;
  BucketPieces pieces_;
  BucketPieces used_pieces_;  // Where the step leaves some out: without these.
  std::vector<StateChunk> chunks_;
  bool chunks_are_of_all_ = false;  // They are those of pieces_.
};

// The loss's sum is multiplied with it before backward, and gradients are divided by it.
double LossFactor(const Config& config, const EngineState& state);
// Makes the mean's gradient from that of the sum times LossFactor, over `count` samples. 0
// where there are none.
double ToMean(const Config& config, const EngineState& state, int64_t count);

}  // namespace dtrain
