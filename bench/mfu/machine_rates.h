// The rates of this rank's device, measured in this run with random operands: products of matrices,
// and copies.
#pragma once

#include <torch/types.h>

namespace dtrain::bench {

struct MachineRates {
  double gemm_flops_per_s = 0;  // The best of square products, sizes growing up to `seconds`.
  int64_t gemm_size = 0;        // Its matrices were [size, size].
  double copy_bytes_per_s = 0;  // Read plus written, of buffers beyond the caches.
};

// `type`: of the factors; FP8 (kFloat8_e4m3fn) on a GPU alone. Takes about `seconds`; on a GPU by
// its own events' clock, with the host waiting. Ranks of a node that train at the same time should
// call it at the same time. The random state is left as it was.
MachineRates MeasureRates(const at::Device& device, at::ScalarType type, double seconds = 1.0);

// The better of two measurements of one run.
MachineRates Best(const MachineRates& a, const MachineRates& b);

}  // namespace dtrain::bench
