// One evaluation of an engine's model: the mean loss over a source's batches, without gradients.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/engine/micro_batches.h"

namespace dtrain {

class Evaluation {
 public:
  // REQUIRES: all outlive this object.
  Evaluation(EngineParts& engine, MicroBatches& micro_batches,
             const internal::EvaluationCalls& calls)
      : engine_(engine), micro_batches_(micro_batches), calls_(calls) {}

  // Collective. Contract and result are those of Engine::Evaluate. REQUIRES: the engine is idle.
  absl::StatusOr<double> Run();

 private:
  absl::Status Load();
  absl::Status LoadSpare();
  // Adds the loss of this rank's batch to the vote.
  absl::Status TakeBatch(int64_t micro);
  absl::StatusOr<StepVerdict> TakeBatches();
  absl::StatusOr<StepVerdict> AgreeOnNext(const absl::Status& failure);
  // The result of an evaluation that ended with `verdict`.
  absl::StatusOr<double> Result(const StepVerdict& verdict) const;

  EngineParts& engine_;
  MicroBatches& micro_batches_;
  const internal::EvaluationCalls& calls_;
  StepVote vote_;  // This rank's sums up to now, and whether it has a batch for the next round.
};

}  // namespace dtrain
