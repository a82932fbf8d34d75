// What each SIMD variant implements: loops over ranges in one thread, which OP_cpu.cc calls from a
// ParallelFor. Private to this room.
#pragma once

#include <cstdint>

#include "base/cpu_features.h"
#include "base/float16.h"
#include "kernels/adagrad.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/lamb.h"
#include "kernels/lion.h"
#include "kernels/muon.h"
#include "kernels/rmsnorm.h"
#include "kernels/sgd.h"
#include "kernels/swiglu.h"

namespace dtrain::kernels {

// Whether results go past the caches: worth it when they are too large to be read from them.
enum class Write : bool { kCached, kStream };

// Indices of the flat operations' dtypes.
enum FlatDType : int { kFlatF32 = 0, kFlatBf16 = 1, kFlatF16 = 2, kFlatDTypes = 3 };

// Indices of an optimizer state's types.
enum StateType : int { kStateF32 = 0, kStateBf16 = 1, kStateTypes = 2 };

// `state` is [n] of the type that the entry is for.
template <class Scalars>
using OneStateLoop = void (*)(int64_t n, float* p, const float* g, void* state, BFloat16* out,
                              const Scalars& scalars, Write write_out);

using ConvertLoop = void (*)(int64_t n, const void* src, void* dst, float scale, Write write);

// Rows [begin, end).
template <class T>
using CrossEntropyLoop = void (*)(const CrossEntropyArgs<T>& args, int64_t begin, int64_t end,
                                  Write write);
struct CrossEntropyLoops {
  CrossEntropyLoop<float> forward_f32;
  CrossEntropyLoop<BFloat16> forward_bf16;
  CrossEntropyLoop<float> backward_f32;
  CrossEntropyLoop<BFloat16> backward_bf16;
};

struct SimdTable {
  SimdLevel level;

  void (*adamw_f32)(int64_t n, float* p, const float* g, float* m, float* v, BFloat16* out,
                    const AdamWStepScalars& scalars, Write write_out);
  void (*adamw_bf16)(int64_t n, float* p, const BFloat16* g, float* m, float* v, BFloat16* out,
                     const AdamWStepScalars& scalars, Write write_out);
  void (*adamw_bf16_state)(int64_t n, float* p, const float* g, BFloat16* m, BFloat16* v,
                           BFloat16* out, const AdamWStepScalars& scalars, Write write_out);

  // Optimizers with one state, by its type.
  OneStateLoop<SgdStepScalars> sgd[kStateTypes];  // State null: no momentum.
  OneStateLoop<LionStepScalars> lion[kStateTypes];
  OneStateLoop<AdagradStepScalars> adagrad[kStateTypes];

  // At most one norm block: new moments, sums of squares of weights and updates.
  LambSums (*lamb_moments)(int64_t n, const float* p, const float* g, float* m, float* v,
                           const LambStepScalars& scalars);
  void (*lamb_apply)(int64_t n, float* p, const float* m, const float* v, BFloat16* out,
                     const LambStepScalars& scalars, float trust_step);
  void (*muon_direction)(int64_t n, const float* g, float* m, float* direction,
                         const MuonStepScalars& scalars);
  void (*muon_apply)(int64_t n, float* p, const float* direction, BFloat16* out, float step,
                     float decay);

  // The sum of squares of at most one norm block.
  double (*square_sum_f32)(const float* x, int64_t n);
  double (*square_sum_bf16)(const BFloat16* x, int64_t n);

  // Indexed [source][destination].
  ConvertLoop scale[kFlatDTypes][kFlatDTypes];
  ConvertLoop accumulate[kFlatDTypes][kFlatDTypes];
  void (*fill[kFlatDTypes])(int64_t n, float value, void* dst, Write write);

  // Rows [begin, end).
  void (*rmsnorm_forward_f32)(const RmsNormForwardArgs<float>& args, int64_t begin, int64_t end,
                              Write write);
  void (*rmsnorm_forward_bf16)(const RmsNormForwardArgs<BFloat16>& args, int64_t begin, int64_t end,
                               Write write);
  // Rows [begin, end), whose weight gradient is written to partial [hidden].
  void (*rmsnorm_backward_f32)(const RmsNormBackwardArgs<float>& args, int64_t begin, int64_t end,
                               float* partial, Write write);
  void (*rmsnorm_backward_bf16)(const RmsNormBackwardArgs<BFloat16>& args, int64_t begin,
                                int64_t end, float* partial, Write write);

  void (*swiglu_forward_f32)(const SwiGluForwardArgs<float>& args, Write write);
  void (*swiglu_forward_bf16)(const SwiGluForwardArgs<BFloat16>& args, Write write);
  void (*swiglu_backward_f32)(const SwiGluBackwardArgs<float>& args, Write write);
  void (*swiglu_backward_bf16)(const SwiGluBackwardArgs<BFloat16>& args, Write write);

  CrossEntropyLoops cross_entropy;
};

const SimdTable& ScalarTable();
const SimdTable& Avx2Table();
const SimdTable& Avx512Table();

// The table that the next call uses.
const SimdTable& ActiveTable();

}  // namespace dtrain::kernels
