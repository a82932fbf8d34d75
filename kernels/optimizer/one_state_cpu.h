// How CPU optimizer kernels with one state run over a range. Private to this room.
#pragma once

#include "base/check.h"
#include "base/threads/parallel_for.h"
#include "kernels/flat.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {

inline StateType StateTypeOf(const MutableFlat& state) {
  DT_CHECK(state.dtype == DType::kFloat32 || state.dtype == DType::kBFloat16)
      << " optimizer states are fp32 or bf16, not " << DTypeName(state.dtype);
  return state.dtype == DType::kFloat32 ? kStateF32 : kStateBf16;
}

// `loops` by state type; a state without data stays null.
template <class Scalars>
void RunOneState(int64_t n, float* p, const float* g, MutableFlat state, BFloat16* p_bf16,
                 const Scalars& scalars, const OneStateLoop<Scalars> (&loops)[kStateTypes],
                 ParallelFor parallel_for) {
  const OneStateLoop<Scalars> loop = loops[StateTypeOf(state)];
  const auto width = static_cast<int64_t>(DTypeBytes(state.dtype));
  auto* const bytes = static_cast<char*>(state.data);
  const Write write = WriteFor(n * static_cast<int64_t>(sizeof(BFloat16)), false);
  parallel_for(n, kElementGrain, [&](int64_t begin, int64_t end) {
    loop(end - begin, p + begin, g + begin, bytes == nullptr ? nullptr : bytes + begin * width,
         p_bf16 == nullptr ? nullptr : p_bf16 + begin, scalars, write);
  });
}

}  // namespace dtrain::kernels
