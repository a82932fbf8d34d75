// Cases of the rotary positions: 16 heads of 128 in a row of kHidden.
#include "bench/kernels/both_types.h"
#include "kernels/layers/rope.h"

namespace dtrain::bench {
namespace {

constexpr int64_t kSequence = 1024;
static_assert(kHidden == 16 * kHeadDim);

template <class T>
kernels::RopeArgs<T> Args(Arena& a, kernels::RopeForm form) {
  kernels::RopeArgs<T> args;
  args.form = form;
  args.tokens = a.rows();
  args.sequence = kSequence;
  args.head_dim = args.rotary_dim = kHeadDim;
  args.cos = a.Stream<float>(4);
  args.sin = a.Stream<float>(5);
  return args;
}

}  // namespace

std::vector<Case> RopeCases() {
  std::vector<Case> cases;
  for (const auto form : {kernels::RopeForm::kHalfSplit, kernels::RopeForm::kInterleaved}) {
    const std::string name =
        form == kernels::RopeForm::kHalfSplit ? "rope_halves" : "rope_interleaved";
    AddBothTypes(cases, name, 1, 1, [=](auto type) -> Kernel {
      using T = decltype(type);
      return [=](Arena& a, const Threads& t) {
        kernels::RopeArgs<T> args = Args<T>(a, form);
        args.parts[0] = {16, true, a.Stream<T>(0), a.Stream<T>(1), kHidden, kHidden};
        kernels::RopeCpu(args, t);
      };
    });
  }
  // 12 heads of q, 2 of k and of v to the gradient of their fused projection.
  AddBothTypes(cases, "rope_qkv_backward", 1, 1, [](auto type) -> Kernel {
    using T = decltype(type);
    return [](Arena& a, const Threads& t) {
      kernels::RopeArgs<T> args = Args<T>(a, kernels::RopeForm::kHalfSplit);
      args.inverse = true;
      const T* from = a.Stream<T>(0);
      T* to = a.Stream<T>(1);
      int part = 0;
      for (const int64_t heads : {12, 2, 2}) {
        const int64_t row = heads * kHeadDim;
        args.parts[part] = {heads, part < 2, from, to, row, kHidden};
        from += a.rows() * row;
        to += row;
        ++part;
      }
      kernels::RopeCpu(args, t);
    };
  });
  return cases;
}

}  // namespace dtrain::bench
