// One round of a case: the probe, the kernel, the probe, in the same memory.
#pragma once

#include "bench/kernels/case.h"

namespace dtrain::bench {

struct RoundTimes {
  double probe_before_s = 0;
  double kernel_s = 0;
  double probe_after_s = 0;

  double probe_s() const { return (probe_before_s + probe_after_s) / 2; }
  // Whether the machine was the same before and after: the two probes differ by at most 10%.
  bool steady() const;
};

// A case on a number of threads.
class Measured {
 public:
  // Chooses the faster stores for the probe, and warms both up.
  Measured(const Case& bench_case, int threads, Arena& arena);

  RoundTimes Round(Arena& arena) const;

  const Case& bench_case() const { return *case_; }
  int threads() const { return threads_.count; }
  bool probe_non_temporal() const { return non_temporal_; }
  double giga_bytes(const Arena& arena) const {
    return static_cast<double>(case_->mix.BytesPerElement()) * static_cast<double>(arena.elements) *
           1e-9;
  }

 private:
  double ProbeSeconds(const Arena& arena, bool non_temporal) const;

  const Case* case_;
  Threads threads_;
  bool non_temporal_ = false;
};

}  // namespace dtrain::bench
