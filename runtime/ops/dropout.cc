#include "kernels/dropout.h"

#include <bit>
#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/engine/torch_pool.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
void Run(const at::Tensor& x, double p, uint64_t seed, at::Tensor& out) {
  kernels::DropoutCpu(kernels::DropoutArgs<T>{.count = x.numel(),
                                              .p = p,
                                              .stream = {.seed = seed},
                                              .x = Data<T>(x),
                                              .out = MutableData<T>(out)},
                      TorchParallelFor);
}

at::Tensor Dropped(const at::Tensor& x, double p, uint64_t seed) {
  at::Tensor out = at::empty_like(x);
  if (x.scalar_type() == at::kFloat) {
    Run<float>(x, p, seed, out);
  } else {
    Run<BFloat16>(x, p, seed, out);
  }
  return out;
}

// From the generator that manual_seed, checkpoints and Recompute know.
uint64_t DrawSeed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

class DropoutFunction : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double p) {
    RECORD_FUNCTION("dtrain::dropout", Inputs(x));
    const uint64_t seed = DrawSeed();
    context->saved_data["p"] = p;
    context->saved_data["seed"] = std::bit_cast<int64_t>(seed);
    return Dropped(x, p, seed);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::dropout_backward", Inputs(dy));
    return {Dropped(dy, context->saved_data["p"].toDouble(),
                    std::bit_cast<uint64_t>(context->saved_data["seed"].toInt())),
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
