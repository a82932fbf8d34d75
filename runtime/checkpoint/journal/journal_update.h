// The update of a step that a journal keeps: the gradient is rounded to what the journal holds
// before the update takes it, so that a step and its replay update by the same bits, and a copy of
// it stays for the journal's thread. Two forms: on the host (host_update.h) and on a GPU
// (device_update.h). For the thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/optimizer/step_end.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {

// The part of a step's record that its update gives.
struct KeptUpdate {
  StepEnd end;
  absl::Span<const std::byte> gradient;  // Empty where the step changed no weights.
};
// Gives it once it is known, which on a GPU is when the device has passed the step. For the
// journal's thread.
using LateUpdate = std::function<absl::StatusOr<KeptUpdate>()>;

class JournalUpdate {
 public:
  virtual ~JournalUpdate() = default;
  // Allocates the memory of kept gradients, for two steps by turns.
  virtual absl::Status Allocate() = 0;
  // Takes part in updates by `hooks` as long as this object lives.
  virtual void Listen(StepHooks& hooks) = 0;
  // Whether the program has written a weight since the last update, where that is known before the
  // next one.
  virtual bool FindsWritten() = 0;
  // The update of the step that ends as `end` says follows. With `keeps` its gradient is kept.
  // REQUIRES: with `keeps`, the journal's thread is done with all kept steps but the last.
  virtual void Begin(const StepEnd& end, bool keeps) = 0;
  // The update has ended, or is queued. Gives whether a weight was not as the update before had
  // left it.
  virtual bool End() = 0;
  // Gives the update that was kept last.
  virtual LateUpdate Take() = 0;
  // Waits until the update that was kept last is known.
  virtual void Await() = 0;
};

struct JournalUpdateOptions {
  DType dtype = DType::kBFloat16;  // Or fp32.
  // Updates leave parameters out (optimizer.skip_unused_parameters), not the same ones in each
  // step.
  bool leaves_out = false;
  absl::Duration timeout;  // The longest wait for a step on a GPU.
};

// `stored`: the elements that this rank journals, ascending. REQUIRES: `engine` outlives the
// result.
std::shared_ptr<JournalUpdate> MakeJournalUpdate(const EngineState& engine,
                                                 std::vector<plan::OwnedRange> stored,
                                                 const JournalUpdateOptions& options);

// Calls `take(begin, end, kept)` for parts of `whole` that together are it, in order: `kept` is
// where among all elements of `stored` the part begins, or -1 where it is none of them.
template <class Take>
void ForStoredParts(absl::Span<const plan::OwnedRange> stored, plan::FlatRange whole, Take take) {
  plan::FlatRange left = whole;
  int64_t before = 0;
  for (const plan::OwnedRange& range : stored) {
    const plan::FlatRange shared = plan::Intersect(range.flat, whole);
    if (shared.elements() > 0) {
      if (left.begin < shared.begin) {
        take(plan::FlatRange{left.begin, shared.begin}, int64_t{-1});
      }
      take(shared, before + shared.begin - range.flat.begin);
      left.begin = shared.end;
    }
    before += range.flat.elements();
  }
  if (left.elements() > 0) {
    take(left, int64_t{-1});
  }
}

}  // namespace dtrain
