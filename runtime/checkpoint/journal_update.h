// The update of a step that a journal keeps: the gradient is rounded to what the journal holds on
// its way into the update, so that a step and its replay update by the same bits, and copied;
// weights are compared with how the update before has left them. All of it happens piece by piece,
// while a core's cache holds what the update reads anyway.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/update_pieces.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

class JournalUpdate {
 public:
  // `stored`: the elements that this rank journals, ascending; `dtype`: how, in bf16 or fp32.
  // REQUIRES: `engine` outlives this object.
  JournalUpdate(const EngineState& engine, std::vector<plan::OwnedRange> stored, DType dtype)
      : engine_(engine), stored_(std::move(stored)), dtype_(dtype) {}

  // The update that follows copies the gradient of `stored` to `into`, one range after the other,
  // and looks at its weights. With an empty one it rounds and does neither.
  void Begin(absl::Span<std::byte> into);
  // StepHooks::update_piece.
  void Update(const UpdatePiece& piece, const float* gradient, StepHooks::PartUpdate update);
  // Gives whether a weight was not as the update before had left it; false if one of the two did
  // not look at weights. REQUIRES: the update has ended.
  bool FindsWritten();

 private:
  // Elements [begin, end) of the layout, all of one piece. `kept`: where their gradient goes; null:
  // they are not journalled here.
  void UpdateRange(const UpdatePiece& piece, const float* gradient, plan::FlatRange range,
                   std::byte* kept, StepHooks::PartUpdate update);
  // The gradient for the update of `count` elements from `from` on: `rounded`, or `from` itself.
  const float* Keep(const float* from, int64_t count, std::byte* kept, float* rounded) const;
  uint64_t Fingerprint(int64_t flat, int64_t local, int64_t count) const;

  const EngineState& engine_;
  const std::vector<plan::OwnedRange> stored_;
  const DType dtype_;
  absl::Span<std::byte> into_;
  // Sums of fingerprints of the journalled weights, before and after the update.
  std::atomic<uint64_t> before_{0};
  std::atomic<uint64_t> after_{0};
  std::optional<uint64_t> left_;  // after_ of the update before, if it looked.
};

}  // namespace dtrain
