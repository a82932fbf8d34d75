// The update of a journalled step on the host: the gradient is rounded and copied on its way into
// the update; weights are compared with how the update before has left them. Optimizers that can do
// so in the pass of their update, which memory bounds; for the others it happens piece by piece,
// while a core's cache holds what the update reads anyway.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/types/span.h"
#include "runtime/checkpoint/journal/journal_update.h"
#include "runtime/optimizer/update_pieces.h"

namespace dtrain {

class HostJournalUpdate final : public JournalUpdate,
                                public std::enable_shared_from_this<HostJournalUpdate> {
 public:
  // The arguments are those of MakeJournalUpdate.
  HostJournalUpdate(const EngineState& engine, std::vector<plan::OwnedRange> stored,
                    const JournalUpdateOptions& options);

  absl::Status Allocate() override;
  void Listen(StepHooks& hooks) override;
  bool FindsWritten() override;
  void Begin(const StepEnd& end, bool keeps) override;
  bool End() override;
  LateUpdate Take() override;
  void Await() override {}

 private:
  // StepHooks::update_piece.
  void Update(const UpdatePiece& piece, const float* gradient, const PartUpdate& update);
  // Elements [begin, end) of the layout, all of one piece. `kept`: where their gradient goes; null:
  // they are not journalled here.
  void UpdateRange(const UpdatePiece& piece, const float* gradient, plan::FlatRange range,
                   std::byte* kept, const PartUpdate& update);
  // The same by an optimizer that rounds. REQUIRES: the journal holds bf16.
  void UpdateRounded(const UpdatePiece& piece, plan::FlatRange range, std::byte* kept,
                     const PartUpdate& update);
  // The gradient for the update of `count` elements from `from` on: `rounded`, or `from` itself.
  const float* Keep(const float* from, int64_t count, std::byte* kept, float* rounded) const;
  uint64_t Fingerprint(int64_t flat, int64_t local, int64_t count) const;
  uint32_t WeightsChecksum() const;

  const EngineState& engine_;
  const std::vector<plan::OwnedRange> stored_;
  const JournalUpdateOptions options_;
  at::Tensor gradients_[2];  // Two take turns. Their pages are written to the disk as they lie.
  size_t next_ = 0;          // Index into gradients_.
  StepEnd end_;              // The step under way ends so.
  bool keeps_ = false;
  absl::Span<std::byte> into_;  // Where its gradient goes; empty: nowhere.
  // Sums of fingerprints of the journalled weights, before and after the update.
  std::atomic<uint64_t> before_{0};
  std::atomic<uint64_t> after_{0};
  std::optional<uint64_t> left_;  // after_ of the update before, if it looked.
  // With leaves_out weights are not compared by what updates visit, but as a whole: the checksum of
  // the weights behind the last update.
  std::optional<uint32_t> weights_;
};

}  // namespace dtrain
