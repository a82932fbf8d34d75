#include "runtime/engine/micro_batch_random.h"

#include "runtime/job/job_state.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/plan/data/token_sampler.h"

namespace dtrain {

MicroBatchRandom::MicroBatchRandom(Job& job, const int64_t& steps)
    : job_(job), entry_(job.state().steps, steps) {}

uint64_t MicroBatchRandom::SeedOf(MicroBatchOf pass, int64_t micro) const {
  const plan::RankSlice slice{.rank = job_.rank(), .world_size = job_.world_size()};
  // Evaluations draw the same numbers each time, as they read the same batches.
  const int64_t step = pass == MicroBatchOf::kTraining ? job_.state().steps.sum() : 0;
  return MicroBatchSeed(job_.config().seed(), pass, step, slice.place(micro));
}

void MicroBatchRandom::SeedNextForward() {
  seeded_ = counted_;
  SeedRng(SeedOf(MicroBatchOf::kTraining, seeded_));
}

}  // namespace dtrain
