// AdamW whose bf16 moments are rounded stochastically: up with the probability of what is cut off,
// so that a moment's mean is exact however small its changes are. To nearest, (1 - beta2) (g^2 - v)
// is below half a bf16 step of v for beta2 above 0.996, and v would stand still.
//
// Otherwise adamw.h with moments in bf16. The bits that decide come from a Philox stream
// (philox.h) at the element's place in the global layout: the low 16 for m, the high 16 for v. This
// gives the same bits on repeat and however the layout is sharded, beside every SIMD variant,
// thread count, split and CUDA, where a NaN is CUDA's own (cuda_table.h). A finite moment next to
// the largest bf16 may become infinite; NaN and infinity stay. Thread-safe on disjoint buffers;
// nothing is allocated.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/numeric/float16.h"
#include "base/threads/parallel_for.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/layers/philox.h"
#include "kernels/optimizer/adamw.h"

namespace dtrain::kernels {

// Updates p, m, v [n], whose first element is the layout's element `first`. Give a stream's offset
// the step, so that each step has its own bits.
void AdamWStochasticCpu(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                        BFloat16* v, BFloat16* p_bf16_or_null, const AdamWOptions& options,
                        const PhiloxStream& stream, ParallelFor parallel_for);

// The same on device pointers; device_scalars and device_stream are read when the kernel runs.
// Queues one kernel on `stream`, does not synchronise; Internal when the launch fails.
absl::Status AdamWStochasticCuda(int64_t n, int64_t first, float* p, const float* g, BFloat16* m,
                                 BFloat16* v, BFloat16* p_bf16_or_null,
                                 const AdamWStepScalars* device_scalars,
                                 const PhiloxStream* device_stream, CudaStream stream);

}  // namespace dtrain::kernels
