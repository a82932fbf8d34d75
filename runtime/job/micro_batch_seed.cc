#include "runtime/job/micro_batch_seed.h"

#include <numeric>

#include "base/numeric/prng.h"

namespace dtrain {

uint64_t MicroBatchSeed(uint64_t seed, MicroBatchOf pass, int64_t step, int64_t place) {
  constexpr uint64_t kTrainingStream = 0x747261696e696e67;  // Their bits are no other stream's.
  constexpr uint64_t kEvaluationStream = 0x6576616c75617465;
  const bool trains = pass == MicroBatchOf::kTraining;
  uint64_t bits = MixBits((trains ? kTrainingStream : kEvaluationStream) ^ seed);
  bits = MixBits(bits ^ static_cast<uint64_t>(step));
  return MixBits(bits ^ static_cast<uint64_t>(place));
}

int64_t StepsOfEngines::sum() const {
  return std::accumulate(engines_.begin(), engines_.end(), of_gone_,
                         [](int64_t sum, const int64_t* steps) { return sum + *steps; });
}

}  // namespace dtrain
