// Compiled with -fopenmp: at::parallel_for is silently serial without it.
#include "runtime/model/torch_pool.h"

#include <omp.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "ATen/Parallel.h"
#include "base/system/cgroup.h"

namespace dtrain {

// libgomp reads its settings before main(), but looks a hundredth as long where it manages more
// threads than the process has CPUs. A team that sleeps for good makes them that many.
void SleepBetweenOperations(double cpu_quota) {
  const int threads = omp_get_max_threads();
  const int cpus = omp_get_num_procs();
  if (threads == 1 || threads < CpusWithin(cpu_quota, cpus)) {
    return;
  }
  static std::atomic<bool> has_team{false};
  if (has_team.exchange(true)) {
    return;  // An earlier job of this process made it, and it sleeps for good.
  }
  const int team = std::max(2, cpus - threads + 2);
  std::thread([team] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
#pragma omp parallel num_threads(team)
    { asm volatile(""); }
    for (;;) {
      pause();
    }
  }).detach();
}

void ComputeOnThisThreadAlone() {
  at::internal::lazy_init_num_threads();  // Else the first operation would set the number anew.
  omp_set_num_threads(1);
}

void TorchParallelFor(int64_t count, int64_t grain,
                      absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  if (at::get_num_threads() == 1 || count <= grain) {
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
