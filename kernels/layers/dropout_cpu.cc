#include "kernels/flat.h"
#include "kernels/layers/dropout.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

template <class T, class Loop>
void Run(const DropoutArgs<T>& args, ParallelFor parallel_for, Loop loop) {
  if (args.p == 1) {
    const DType dtype = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;
    FillCpu(args.count, 0, {args.out, dtype}, parallel_for);
    return;
  }
  const DropoutRule rule = MakeDropoutRule(args.p);
  const int64_t bytes = args.count * static_cast<int64_t>(sizeof(T));
  // Streaming stores need whole aligned lines, and these begin where the random runs do.
  const bool aligned = reinterpret_cast<uint64_t>(args.out) % 64 == 0;
  const Write write = WriteFor(bytes, args.out == args.x || !aligned);
  const int64_t runs = (args.count + kPhiloxHalfRun - 1) / kPhiloxHalfRun;
  parallel_for(runs, kElementGrain / kPhiloxHalfRun,
               [&](int64_t begin, int64_t end) { loop(args, rule, begin, end, write); });
}

}  // namespace

void DropoutCpu(const DropoutArgs<float>& args, ParallelFor parallel_for) {
  Run(args, parallel_for, ActiveTable().random.dropout_f32);
}

void DropoutCpu(const DropoutArgs<BFloat16>& args, ParallelFor parallel_for) {
  Run(args, parallel_for, ActiveTable().random.dropout_bf16);
}

}  // namespace dtrain::kernels
