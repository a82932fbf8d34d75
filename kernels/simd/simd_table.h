// The table of functions that each SIMD variant implements: loops over ranges in one thread, which
// OP_cpu.cc calls from a ParallelFor. Private to this room.
#pragma once

#include <cstdint>

#include "base/numeric/float16.h"
#include "base/system/cpu_features.h"
#include "kernels/layers/activation.h"
#include "kernels/layers/cross_entropy.h"
#include "kernels/layers/dropout.h"
#include "kernels/layers/embedding.h"
#include "kernels/layers/layernorm.h"
#include "kernels/layers/rmsnorm.h"
#include "kernels/layers/rope.h"
#include "kernels/optimizer/adagrad.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw_rounded.h"
#include "kernels/optimizer/lamb.h"
#include "kernels/optimizer/lion.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/sgd.h"
#include "kernels/quantize/fp8.h"
#include "kernels/quantize/int8_blocks.h"

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
};

// Blocks [begin, end), by the type of the values that are not int8.
struct Int8BlockLoops {
  void (*quantize[kStateTypes])(const QuantizeInt8Args& args, int64_t begin, int64_t end);
  void (*dequantize[kStateTypes])(const DequantizeInt8Args& args, int64_t begin, int64_t end,
                                  Write write);
};

// Rows [begin, end) of the table, from tokens that are sorted.
struct EmbeddingLoops {
  void (*backward_f32)(const EmbeddingBackwardArgs<float>& args, int64_t begin, int64_t end,
                       Write write);
  void (*backward_bf16)(const EmbeddingBackwardArgs<BFloat16>& args, int64_t begin, int64_t end,
                        Write write);
};

// Runs [begin, end) of kPhiloxRun elements. kStream: `out` is aligned to sixteen elements.
template <class T>
using DropoutLoop = void (*)(const DropoutArgs<T>& args, const DropoutRule& rule, int64_t begin,
                             int64_t end, Write write);
struct RandomLoops {
  DropoutLoop<float> dropout_f32;
  DropoutLoop<BFloat16> dropout_bf16;
  // Elements whose first is the layout's element `first`.
  void (*adamw)(int64_t n, int64_t first, float* p, const float* g, BFloat16* m, BFloat16* v,
                BFloat16* out, const AdamWStepScalars& scalars, const PhiloxStream& stream);
};

// Casts return the bits of the largest magnitude. Indexed [format][type of the other side].
struct Fp8Loops {
  uint32_t (*to[2][kStateTypes])(int64_t n, const void* src, uint8_t* dst, float scale);
  void (*from[2][kStateTypes])(int64_t n, const uint8_t* src, void* dst, float scale, Write write);
  uint32_t (*amax[kStateTypes])(int64_t n, const void* src);
};

// Rows [begin, end). A backward writes the gradients of weight (and bias) of those rows to
// partial, [hidden] each.
template <class Args>
using NormForwardLoop = void (*)(const Args& args, int64_t begin, int64_t end, Write write);
template <class Args>
using NormBackwardLoop = void (*)(const Args& args, int64_t begin, int64_t end, float* partial,
                                  Write write);
template <template <class> class ForwardArgs, template <class> class BackwardArgs>
struct NormLoops {
  NormForwardLoop<ForwardArgs<float>> forward_f32;
  NormForwardLoop<ForwardArgs<BFloat16>> forward_bf16;
  NormBackwardLoop<BackwardArgs<float>> backward_f32;
  NormBackwardLoop<BackwardArgs<BFloat16>> backward_bf16;
};
using RmsNormLoops = NormLoops<RmsNormForwardArgs, RmsNormBackwardArgs>;
using LayerNormLoops = NormLoops<LayerNormForwardArgs, LayerNormBackwardArgs>;

// Indexed by Activation.
template <class T>
struct ActivationLoops {
  void (*forward[kActivations])(const ActivationForwardArgs<T>& args, Write write);
  void (*backward[kActivations])(const ActivationBackwardArgs<T>& args, Write write);
  void (*gated_forward[kActivations])(const GatedForwardArgs<T>& args, Write write);
  void (*gated_backward[kActivations])(const GatedBackwardArgs<T>& args, Write write);
};

struct SimdTable {
  SimdLevel level;

  void (*adamw_f32)(int64_t n, float* p, const float* g, float* m, float* v, BFloat16* out,
                    const AdamWStepScalars& scalars, Write write_out);
  void (*adamw_bf16)(int64_t n, float* p, const BFloat16* g, float* m, float* v, BFloat16* out,
                     const AdamWStepScalars& scalars, Write write_out);
  void (*adamw_bf16_state)(int64_t n, float* p, const float* g, BFloat16* m, BFloat16* v,
                           BFloat16* out, const AdamWStepScalars& scalars, Write write_out);
  WeightSums (*adamw_rounded)(const AdamWRoundedArgs& args, const AdamWStepScalars& scalars);

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
  void (*copy_past_caches)(int64_t bytes, const void* src, void* dst);  // Keeps every bit.

  RmsNormLoops rms_norm;
  LayerNormLoops layer_norm;
  ActivationLoops<float> activation_f32;
  ActivationLoops<BFloat16> activation_bf16;
  // Tokens [begin, end).
  void (*rope_f32)(const RopeArgs<float>& args, int64_t begin, int64_t end, Write write);
  void (*rope_bf16)(const RopeArgs<BFloat16>& args, int64_t begin, int64_t end, Write write);

  CrossEntropyLoops cross_entropy;
  Int8BlockLoops int8_blocks;
  EmbeddingLoops embedding;
  RandomLoops random;
  Fp8Loops fp8;
};

const SimdTable& ScalarTable();
const SimdTable& Avx2Table();
const SimdTable& Avx512Table();

// The table that the next call uses.
const SimdTable& ActiveTable();

}  // namespace dtrain::kernels
