// Saves a snapshot while training goes on: one save at a time, written by a thread of its own from
// a copy that is made on the way (checkpoint/commit/staged_source.h).
//
// For the thread that trains, which makes the same calls on every rank; only when a save ends, each
// rank learns by itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "base/threads/worker.h"
#include "checkpoint/commit/staged_source.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/exchange.h"
#include "runtime/checkpoint/engine_snapshot.h"

namespace dtrain {

class BackgroundSave {
 public:
  // `exchange` is for saves alone: its calls do not come in the order of training's. REQUIRES: both
  // outlive this object, and nobody else uses `writer` while a save runs.
  BackgroundSave(checkpoint::Writer& writer, checkpoint::Exchange& exchange,
                 uint64_t staging_bytes);
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;
  // Waits for a save under way.
  ~BackgroundSave();

  // From Start until Take or Wait has given its report.
  bool running() const { return source_ != nullptr; }
  // REQUIRES: not running.
  void Start(int64_t step, EngineSnapshot snapshot);
  // Returns when an update of the weights changes nothing that still has to be copied.
  void LetUpdate();
  // The report of the save, if it has ended. Does not wait.
  std::optional<checkpoint::SaveReport> Take();
  // The same, and waits; nothing if none was running.
  std::optional<checkpoint::SaveReport> Wait();

 private:
  void Run(int64_t step, checkpoint::StagedSource& source);
  checkpoint::SaveReport End();

  checkpoint::Writer& writer_;
  checkpoint::Exchange& exchange_;
  checkpoint::StagingPool pool_;
  std::shared_ptr<checkpoint::StagedSource> source_;  // Null: no save runs.
  std::vector<at::Tensor> keep_;                      // The tensors that the snapshot owns.
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<checkpoint::SaveReport> report_;  // The report of a save that has ended.
  Worker worker_;                                 // Ends first.
};

}  // namespace dtrain
