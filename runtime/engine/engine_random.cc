// Which random numbers micro-batches draw: in Step those of a seed of their own, while the
// program's stand still; in a loop of the program's own the default generators are seeded for what
// comes next.
#include "runtime/engine/engine_impl.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/plan/data/token_sampler.h"

namespace dtrain {

uint64_t Engine::Impl::SeedOf(MicroBatchOf pass, int64_t micro) const {
  const plan::RankSlice slice{.rank = job.rank(), .world_size = job.world_size()};
  // Evaluations draw the same numbers each time, as they read the same batches.
  const int64_t step = pass == MicroBatchOf::kTraining ? job.state().steps.sum() : 0;
  return MicroBatchSeed(job.config().seed(), pass, step, slice.place(micro));
}

void Engine::Impl::SeedNextForward() {
  seeded_micro_batch = counted_micro_batches;
  SeedRng(SeedOf(MicroBatchOf::kTraining, seeded_micro_batch));
}

void Engine::BeginMicroBatch() { impl_->SeedNextForward(); }

absl::Status Engine::Backward(const Loss& loss, BackwardOptions options) {
  Impl& impl = *impl_;
  impl.DropLeftGradients();
  absl::Status status = impl.Backward(loss, options);
  impl.MoveWaited(impl.report.backward_s);
  // Not while another loss of the same micro-batch may follow.
  const bool over = !options.retain_graph && impl.counted_micro_batches != impl.seeded_micro_batch;
  if (impl.transaction == nullptr && (over || !status.ok())) {
    impl.SeedNextForward();
  }
  return status;
}

}  // namespace dtrain
