// The seed of a micro-batch's random numbers: a function of the run's seed, of the step and of the
// micro-batch's place among those of all ranks. Any number of ranks that train the same global
// batch, before and after a resume, therefore draw the same numbers for the same samples.
#pragma once

#include <cstdint>
#include <vector>

namespace dtrain {

enum class MicroBatchOf : uint8_t { kTraining, kEvaluation };

// `place`: plan::RankSlice::place. Pure.
uint64_t MicroBatchSeed(uint64_t seed, MicroBatchOf pass, int64_t step, int64_t place);

// The steps that all engines of a job have finished: their sum is the step of MicroBatchSeed, so
// that engines which train in turns (a generator and a discriminator) draw other numbers in each
// turn. It follows from the engines' own steps, which checkpoints hold. Not thread-safe.
class StepsOfEngines {
 public:
  // An engine's entry while the engine lives. The steps that it finished still count afterwards.
  class Entry {
   public:
    // REQUIRES: both outlive this object.
    Entry(StepsOfEngines& all, const int64_t& steps) : all_(all), steps_(steps) {
      all_.engines_.push_back(&steps_);
    }
    ~Entry() {
      std::erase(all_.engines_, &steps_);
      all_.of_gone_ += steps_;
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    StepsOfEngines& all_;
    const int64_t& steps_;
  };
  int64_t sum() const;

 private:
  std::vector<const int64_t*> engines_;
  int64_t of_gone_ = 0;
};

}  // namespace dtrain
