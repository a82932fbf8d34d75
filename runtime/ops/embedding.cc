#include "kernels/layers/embedding.h"

#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
void BackwardOnGpu(const kernels::EmbeddingBackwardArgs<T>& args, const at::Tensor& dy) {
  const GpuLaunch launch(dy);
  const kernels::CudaKernelTable& table = launch.kernels();
  const auto bytes = table.embedding_workspace_bytes(args.tokens, args.vocab);
  ThrowUnlessOk(bytes.status());
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(*bytes)}, dy.options().dtype(at::kByte));
  const auto kernel = OfType<T>(table.embedding_backward, table.embedding_backward_bf16);
  ThrowUnlessOk(kernel(args, workspace.mutable_data_ptr(), *bytes, launch.stream()));
}

template <class T>
void Backward(const at::Tensor& ids, const at::Tensor& dy, int64_t padding_index,
              at::Tensor& dweight) {
  kernels::EmbeddingBackwardArgs<T> args;
  args.tokens = ids.numel();
  args.vocab = dweight.size(0);
  args.width = dweight.size(1);
  args.padding_index = padding_index;
  args.ids = ids.const_data_ptr<int64_t>();
  args.dy = Data<T>(dy);
  args.dweight = MutableData<T>(dweight);
  if (OnGpu(dy)) {
    BackwardOnGpu(args, dy);
    return;
  }
  const at::Tensor workspace = at::empty({args.tokens + args.vocab + 2}, ids.options());
  args.order = workspace.mutable_data_ptr<int64_t>();
  args.starts = args.order + args.tokens;
  kernels::EmbeddingBackwardCpu(args, TorchParallelFor);
}

// The weight itself is not kept: backward wants its shape alone, so that ZeRO stage 3 need not
// gather it again.
class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids,
                            const at::Tensor& weight, int64_t padding_index) {
    context->save_for_backward({ids});
    context->saved_data["vocab"] = weight.size(0);
    context->saved_data["padding_index"] = padding_index;
    return at::embedding(weight, ids);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor ids = context->get_saved_variables()[0].contiguous();
    const at::Tensor dy = gradients[0].contiguous();
    RECORD_FUNCTION("dtrain::embedding_backward", Inputs(ids, dy));
    at::Tensor dweight =
        at::empty({context->saved_data["vocab"].toInt(), dy.size(-1)}, dy.options());
    const int64_t padding_index = context->saved_data["padding_index"].toInt();
    if (dy.scalar_type() == at::kFloat) {
      Backward<float>(ids, dy, padding_index, dweight);
    } else {
      Backward<BFloat16>(ids, dy, padding_index, dweight);
    }
    return {{}, dweight, {}};
  }
};

}  // namespace

at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& weight, int64_t padding_index) {
  if (Fusable(weight) && weight.dim() == 2 && weight.size(1) > 0 &&
      ids.scalar_type() == at::kLong && ids.device() == weight.device()) {
    return EmbeddingFunction::apply(ids, weight, padding_index);
  }
  return at::embedding(weight, ids, padding_index);
}

}  // namespace dtrain::ops
