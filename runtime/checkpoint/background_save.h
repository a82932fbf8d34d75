// Saves snapshots while training goes on (checkpoint.async): one at a time, each written by a
// thread of its own from a copy that is made on the way (checkpoint/commit/staged_source.h). The
// ranks' saves talk over a group of their own, since their calls do not come in the order of
// training's. What training must know of all ranks' saves travels in the agreement of each step
// (StepHooks::save_vote), so that a save costs the thread that trains no exchange.
//
// What a snapshot copies passes through checkpoint.staging_memory. Where that is smaller, training
// waits for the storage: when the save starts for what is gathered or may change in a step, and in
// the next update for the rest.
//
// For the thread that trains, which makes the same calls on every rank; only when a save ends, each
// rank learns by itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/threads/worker.h"
#include "checkpoint/commit/staged_source.h"
#include "checkpoint/commit/staging_pool.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/exchange.h"
#include "comm/group.h"
#include "dtrain/job.h"
#include "runtime/checkpoint/device_copies.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// Collective: whether `mine` is true on any rank. `name` is shown in reports.
absl::StatusOr<bool> OnAnyRank(comm::Group& group, bool mine, const char* name);

class BackgroundSave : public std::enable_shared_from_this<BackgroundSave> {
 public:
  // REQUIRES: `job` outlives this object.
  explicit BackgroundSave(Job& job);
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  ~BackgroundSave();

  // The first save will copy about `bytes` on this rank: gets the memory for them beside training.
  void Expect(uint64_t bytes);
  // Whether a save may start, because none was under way on any rank at the last step's agreement.
  // Collective where no step with guarded engines has ended since the call before. Makes the group
  // of saves at the first call, and anew after a save that may have broken it.
  absl::StatusOr<bool> Prepare();
  // From here on, time in which training stands still counts to the save that Start begins.
  void BeginBlocking() { blocked_s_ = 0; }
  double& blocked_s() { return blocked_s_; }
  // A snapshot for Start, still to be taken. REQUIRES: Prepare has returned true.
  EngineSnapshot NewSnapshot();
  // Weights and states of `engine` do not change before a save has copied what it needs, and its
  // steps carry the votes on saves. All ranks guard the same engines.
  void Guard(EngineState& engine);
  // Collective at ZeRO stage 3, where weights are gathered one by one, and at the first call.
  // REQUIRES: Prepare has returned true on all ranks, which all call this; `writer` is used by
  // nobody else until the save has ended. A snapshot that could not be taken (SpanSource::status)
  // makes all ranks give the save up.
  void Start(int64_t step, checkpoint::Writer& writer, EngineSnapshot snapshot);
  // A save for which training stands still, of the snapshot that `take` takes. Collective.
  // REQUIRES: every rank has waited for the one before.
  checkpoint::SaveReport SaveAndWait(
      int64_t step, checkpoint::Writer& writer,
      absl::FunctionRef<absl::StatusOr<EngineSnapshot>(EngineSnapshot)> take);
  // The report of the save, if it has ended. Does not wait.
  std::optional<checkpoint::SaveReport> Take();
  // The same, and waits; nothing if none was under way.
  std::optional<checkpoint::SaveReport> Wait();
  // For a rank that ends: waits for a bounded time, then ends the group of saves.
  std::optional<checkpoint::SaveReport> WaitToEnd();

 private:
  // From Start until Take or Wait has given its report.
  bool running() const { return source_ != nullptr; }
  // This rank's bits in the agreement of a step, and those of all ranks.
  uint32_t Vote();
  void TakeVotes(uint32_t all);
  // Returns when an update changes nothing that still has to be copied; on a GPU, an update that
  // is queued later. `together`: all ranks call it in one step, and leave it together if a rank may
  // have to wait for its storage. If that is slow, it would else be late for the next collective,
  // by more than that allows.
  absl::Status LetUpdate(bool together);
  // Waits for what the thread that writes has to do before: for copies, or for the storage too.
  absl::Status AwaitWriter(bool is_held, bool leaves_together);
  // Waits for the ranks whose storage is slow.
  absl::Status Together();
  absl::Status MakeExchange();
  // Whether there is a stream on which a GPU copies.
  bool CopiesFromDevice();
  // Makes `pool_` as large as it may be for a save that copies `copied` bytes.
  void FitPool(uint64_t copied);
  // Copies what changes before the next update, and has `write` run beside training, also after an
  // exception.
  void CopyAtStart(absl::Span<const checkpoint::Gather> gathers, std::function<void()> write);
  // Copies what each gather gives. In waves it waits for the storage of all ranks.
  absl::Status TakeGathers(absl::Span<const checkpoint::Gather> gathers, bool in_waves);
  // `copies`: of what the snapshot has left on a GPU; null: it has left nothing there.
  void Run(int64_t step, checkpoint::Writer& writer, checkpoint::StagedSource& source,
           DeviceCopies* copies);
  checkpoint::SaveReport End();

  Job& job_;
  std::unique_ptr<comm::Group> group_;  // For the saves' messages; null when this rank is alone.
  std::unique_ptr<checkpoint::Exchange> exchange_;
  std::shared_ptr<DeviceCopies> copies_;              // Null: on the host, or not asked for yet.
  std::shared_ptr<checkpoint::StagingPool> pool_;     // Null: neither expected nor begun.
  std::shared_ptr<checkpoint::StagedSource> source_;  // Null: no save is under way.
  // Keeps a snapshot of a GPU alive. LibTorch records an event on the compute stream when
  // page-locked memory is freed, so only the thread that captures that stream may free it.
  std::vector<at::Tensor> keep_;
  std::optional<uint32_t>
      votes_;  // Those of all ranks in the last step; none: Prepare has taken them.
  bool leaves_together_ = false;  // A rank may wait for its storage in the next LetUpdate.
  std::optional<bool> in_waves_;  // A rank may wait for it in Start; none: not agreed yet.
  bool gpus_copy_ = false;        // Those of all ranks, since the group of saves was made.
  bool on_device_ = false;        // The next update has to come behind copies on the device.
  bool suspect_ = false;          // The last save ended in a way that may have broken its group.
  double blocked_s_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<checkpoint::SaveReport> report_;  // Set when the save has ended.
  Worker worker_;                                 // Ends first.
};

}  // namespace dtrain
