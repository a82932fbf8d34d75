// Compiled with -fopenmp: at::parallel_for is silently serial without it.
#include "runtime/engine/torch_pool.h"

#include <algorithm>

#include "ATen/Parallel.h"

namespace dtrain {
namespace {

thread_local bool computes_alone = false;

}  // namespace

void ComputeAlone() { computes_alone = true; }

void TorchParallelFor(int64_t count, int64_t grain,
                      absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (computes_alone || at::get_num_threads() == 1 || count <= grain) {
    if (count > 0) {
      body(0, count);
    }
    return;
  }
  // at::parallel_for cuts anywhere; kernels want multiples of `grain`, so it runs over grains.
  const int64_t grains = (count + grain - 1) / grain;
  at::parallel_for(0, grains, 1, [&](int64_t begin, int64_t end) {
    body(begin * grain, std::min(count, end * grain));
  });
}

}  // namespace dtrain
