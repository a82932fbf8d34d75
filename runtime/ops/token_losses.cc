#include "runtime/ops/token_losses.h"

#include "ATen/Functions.h"
#include "kernels/layers/cross_entropy.h"
#include "runtime/ops/fused.h"
#include "torch/csrc/autograd/engine.h"

namespace dtrain::ops {
namespace {

// `rows` holds the tokens' losses and lse, [2, tokens].
template <class T>
void FusedLosses(at::Tensor& logits, const at::Tensor& targets, const CrossEntropyOptions& options,
                 bool with_gradient, float* rows) {
  kernels::CrossEntropyArgs<T> args;
  args.tokens = logits.size(0);
  args.vocab = logits.size(1);
  args.options = {options.ignore_index, static_cast<float>(options.z_loss),
                  static_cast<float>(options.label_smoothing)};
  T* const data = MutableData<T>(logits);
  args.logits = data;
  args.targets = targets.const_data_ptr<int64_t>();
  args.losses = rows;
  args.lse = rows + args.tokens;
  args.gradient = with_gradient ? data : nullptr;
  Launch(logits, args, kernels::CrossEntropyForwardCpu,
         OfType<T>(&kernels::CudaKernelTable::cross_entropy_forward,
                   &kernels::CudaKernelTable::cross_entropy_forward_bf16));
}

void AddFusedLosses(at::Tensor& logits, const at::Tensor& targets,
                    const CrossEntropyOptions& options, bool with_gradient, LossSum& sum) {
  const int64_t tokens = logits.size(0);
  const at::Tensor rows = at::empty({2, tokens}, logits.options().dtype(at::kFloat));
  float* const losses = rows.mutable_data_ptr<float>();
  if (logits.scalar_type() == at::kFloat) {
    FusedLosses<float>(logits, targets, options, with_gradient, losses);
  } else {
    FusedLosses<BFloat16>(logits, targets, options, with_gradient, losses);
  }
  const int64_t* const ids = targets.const_data_ptr<int64_t>();
  if (!OnGpu(logits)) {
    sum.Add(kernels::CrossEntropyTotalsCpu(tokens, losses, ids, options.ignore_index).sum);
    return;
  }
  static_assert(sizeof(kernels::CrossEntropyTotals) == 2 * sizeof(double));
  const at::Tensor totals = at::empty({2}, logits.options().dtype(at::kDouble));
  const GpuLaunch launch(logits);
  ThrowUnlessOk(launch.kernels().cross_entropy_totals(
      tokens, losses, ids, options.ignore_index,
      static_cast<kernels::CrossEntropyTotals*>(totals.mutable_data_ptr()), launch.stream()));
  sum.Add(totals[0]);  // The first of the struct.
}

// The formulas of kernels/layers/cross_entropy.h by ATen, for other types and devices.
at::Tensor AtenLosses(at::Tensor& logits, const at::Tensor& targets,
                      const CrossEntropyOptions& options, bool with_gradient) {
  const at::Tensor x = logits.to(LossType(logits.scalar_type()));
  const at::Tensor kept = targets.ne(options.ignore_index);
  const at::Tensor columns = targets.where(kept, at::zeros_like(targets)).unsqueeze(1);
  const at::Tensor lse = x.logsumexp(1);
  const double smoothing = options.label_smoothing;
  at::Tensor losses = lse - x.gather(1, columns).squeeze(1) * (1 - smoothing);
  if (smoothing > 0) {
    losses = losses - x.mean(1) * smoothing;
  }
  if (options.z_loss != 0) {
    losses = losses + lse.square() * options.z_loss;
  }
  at::Tensor sum = losses.where(kept, at::zeros_like(losses)).sum();
  if (with_gradient) {
    at::Tensor gradient = (x - lse.unsqueeze(1)).exp_();
    gradient.mul_((lse * (2 * options.z_loss) + 1).unsqueeze(1));
    gradient.sub_(smoothing / static_cast<double>(x.size(1)));
    gradient.scatter_add_(1, columns, at::full_like(columns, smoothing - 1, x.options()));
    gradient.masked_fill_(kept.logical_not().unsqueeze(1), 0);
    logits.copy_(gradient);
  }
  return sum;
}

}  // namespace

at::ScalarType LossType(at::ScalarType logits) {
  return logits == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor CheckedTargets(const at::Tensor& targets, at::IntArrayRef shape, int64_t vocab,
                          const CrossEntropyOptions& options) {
  TORCH_CHECK_VALUE(options.label_smoothing >= 0 && options.label_smoothing <= 1,
                    "cross-entropy: label_smoothing is ", options.label_smoothing,
                    "; it must be in [0, 1]");
  TORCH_CHECK_VALUE(targets.sizes() == shape && targets.scalar_type() == at::kLong,
                    "cross-entropy: targets are ", targets.scalar_type(), " of shape ",
                    targets.sizes(), "; they must be Long of shape ", shape,
                    ", one for each row of logits");
  at::Tensor flat = targets.reshape({-1}).contiguous();
  if (flat.device().is_cpu()) {
    const int64_t* const data = flat.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < flat.numel(); ++i) {
      TORCH_CHECK_INDEX((data[i] >= 0 && data[i] < vocab) || data[i] == options.ignore_index,
                        "cross-entropy: target ", data[i], " at position ", i, " is outside [0, ",
                        vocab, ") and not the ignored ", options.ignore_index,
                        "; does the data's vocabulary fit the model's?");
    }
  }
  return flat;
}

int64_t CountTargets(const at::Tensor& targets, const CrossEntropyOptions& options) {
  return options.targets_counted >= 0 ? options.targets_counted
                                      : targets.ne(options.ignore_index).sum().item<int64_t>();
}

at::Tensor LossSum::Total(at::ScalarType logits, at::Device device) const {
  const at::TensorOptions options = at::TensorOptions().dtype(LossType(logits)).device(device);
  return device_.defined() ? device_.to(LossType(logits)) : at::full({}, host_, options);
}

void AddTokenLosses(at::Tensor& logits, const at::Tensor& targets,
                    const CrossEntropyOptions& options, bool with_gradient, LossSum& sum) {
  if (Fusable(logits)) {
    AddFusedLosses(logits, targets, options, with_gradient, sum);
  } else {
    sum.Add(AtenLosses(logits, targets, options, with_gradient));
  }
}

at::Tensor TimesUpstream(const at::Tensor& gradient, const at::Tensor& upstream) {
  if (!gradient.defined()) {
    return gradient;
  }
  at::Tensor out =
      torch::autograd::get_current_graph_task_keep_graph() ? gradient.clone() : gradient;
  if (!OnGpu(upstream)) {
    const double factor = upstream.item<double>();
    return factor == 1 ? out : out.mul_(factor);
  }
  // A factor rounded to bf16 would be off by 0.2% for every parameter alike.
  const bool narrow = out.scalar_type() == at::kBFloat16 || out.scalar_type() == at::kHalf;
  return narrow ? out.copy_(out.to(at::kFloat).mul_(upstream)) : out.mul_(upstream);
}

}  // namespace dtrain::ops
