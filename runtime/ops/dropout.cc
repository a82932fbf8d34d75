#include "kernels/layers/dropout.h"

#include <bit>
#include <cstring>
#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The random stream that decides which elements are kept: a kernels::PhiloxStream, as int64 [2] on
// the device of the elements. A GPU draws and reads it there, so that a CUDA graph draws anew each
// time it runs.
at::Tensor DrawStream(const at::Tensor& x) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kLong).device(x.device());
  if (OnGpu(x)) {
    return at::empty({2}, options).random_();
  }
  // From the generator that manual_seed, checkpoints and Recompute know.
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  at::Tensor stream = at::zeros({2}, options);
  stream.mutable_data_ptr<int64_t>()[0] =
      std::bit_cast<int64_t>(at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
  return stream;
}

template <class T>
void Run(const at::Tensor& x, double p, const at::Tensor& stream, at::Tensor& out) {
  static_assert(sizeof(kernels::PhiloxStream) == 2 * sizeof(int64_t));
  kernels::DropoutArgs<T> args{
      .count = x.numel(), .p = p, .x = Data<T>(x), .out = MutableData<T>(out)};
  if (!OnGpu(x)) {
    std::memcpy(&args.stream, stream.const_data_ptr(), sizeof(args.stream));
    kernels::DropoutCpu(args, TorchParallelFor);
    return;
  }
  const GpuLaunch launch(x);
  const auto kernel =
      OfType<T>(launch.kernels().dropout_stream, launch.kernels().dropout_stream_bf16);
  ThrowUnlessOk(kernel(args, static_cast<const kernels::PhiloxStream*>(stream.const_data_ptr()),
                       launch.stream()));
}

at::Tensor Dropped(const at::Tensor& x, double p, const at::Tensor& stream) {
  at::Tensor out = at::empty_like(x);
  if (x.scalar_type() == at::kFloat) {
    Run<float>(x, p, stream, out);
  } else {
    Run<BFloat16>(x, p, stream, out);
  }
  return out;
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double p) {
    RECORD_FUNCTION("dtrain::dropout", Inputs(x));
    const at::Tensor stream = DrawStream(x);
    context->saved_data["p"] = p;
    context->save_for_backward({stream});
    return Dropped(x, p, stream);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::dropout_backward", Inputs(dy));
    return {Dropped(dy, context->saved_data["p"].toDouble(), context->get_saved_variables()[0]),
            {}};
  }
};

}  // namespace

at::Tensor Dropout(const at::Tensor& x, double p, bool training) {
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, "dropout: p is ", p, "; it must be in [0, 1]");
  if (!training || p == 0) {
    return x;
  }
  return Fusable(x) ? DropoutFunction::apply(x, p) : at::dropout(x, p, true);
}

}  // namespace dtrain::ops
