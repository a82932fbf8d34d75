#include "runtime/ops/device_matmul.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "ATen/Functions.h"
#include "absl/status/status.h"
#include "base/log.h"
#include "runtime/ops/fused.h"

namespace dtrain::ops {
namespace {

constexpr int64_t kAlignment = 16;   // Bytes: of addresses, and of strides.
constexpr int64_t kGeluColumns = 8;  // GELU's input has rows of a multiple of that.
// Bytes that cuBLAS recommends for a Hopper GPU; smaller GPUs use less.
constexpr size_t kWorkspaceMax = size_t{32} << 20;
// A run has a few dozen products; one whose shapes never end begins anew.
constexpr size_t kPlansMax = 512;

// By problem, and by GPU: cublasLt chooses for the one that is current. Null: it has no way.
struct Plans {
  std::mutex mutex;
  std::map<std::pair<int, kernels::MatmulProblem>, std::unique_ptr<kernels::Matmul>> made;
  // Once each: of products without a way, and of those that GELU ends.
  bool warned = false;
  bool warned_of_gelu = false;
};

Plans& ThePlans() {
  static auto* const plans = new Plans();  // A thread may still compute while the process ends.
  return *plans;
}

// A matrix as it is stored: rows of `stride` elements, or the transpose of such.
struct Layout {
  bool transposed = false;
  int64_t stride = 0;
};

bool AlignedAt(const at::Tensor& x, int64_t stride) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % kAlignment == 0 &&
         stride * x.element_size() % kAlignment == 0;
}

std::optional<Layout> LayoutOf(const at::Tensor& x) {
  Layout layout;
  if (x.stride(1) == 1 && x.stride(0) >= x.size(1)) {
    layout.stride = x.stride(0);
  } else if (x.stride(0) == 1 && x.stride(1) >= x.size(0)) {
    layout = {.transposed = true, .stride = x.stride(1)};
  } else {
    return std::nullopt;
  }
  return AlignedAt(x, layout.stride) ? std::optional(layout) : std::nullopt;
}

bool IsMatrix(const at::Tensor& x, at::ScalarType type, const at::Device& device) {
  return x.dim() == 2 && x.layout() == at::kStrided && x.scalar_type() == type &&
         x.device() == device && x.numel() > 0;
}

bool BiasFits(const at::Tensor& bias, const at::Tensor& out) {
  return !bias.defined() || (bias.dim() == 1 && bias.size(0) == out.size(1) &&
                             bias.is_contiguous() && bias.scalar_type() == out.scalar_type() &&
                             bias.device() == out.device() && AlignedAt(bias, 0));
}

std::optional<kernels::MatmulType> TypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return kernels::MatmulType::kFloat32;
    case at::kBFloat16:
      return kernels::MatmulType::kBFloat16;
    case at::kFloat8_e4m3fn:
      return kernels::MatmulType::kE4m3;
    case at::kFloat8_e5m2:
      return kernels::MatmulType::kE5m2;
    default:
      return std::nullopt;
  }
}

// Whether kernels::PlanMatmul takes the GELU. ATen takes the others, which need no warning.
bool GeluFits(const DeviceMatmulOptions& options, const at::Tensor& out, bool fp8) {
  const at::Tensor& input = options.gelu_input;
  if (options.gelu == MatmulGelu::kNone) {
    return !input.defined();
  }
  if (options.gelu == MatmulGelu::kBackward && options.bias.defined()) {
    return false;
  }
  if (!input.defined()) {
    return options.gelu == MatmulGelu::kForward;
  }
  return !fp8 && out.size(1) % kGeluColumns == 0 && input.is_contiguous() &&
         input.sizes() == out.sizes() && input.scalar_type() == out.scalar_type() &&
         input.device() == out.device() && AlignedAt(input, input.size(1));
}

kernels::MatmulEpilogue EpilogueOf(const DeviceMatmulOptions& options) {
  using kernels::MatmulEpilogue;
  switch (options.gelu) {
    case MatmulGelu::kNone:
      return options.bias.defined() ? MatmulEpilogue::kBias : MatmulEpilogue::kNone;
    case MatmulGelu::kForward:
      return options.bias.defined() ? MatmulEpilogue::kGeluBias : MatmulEpilogue::kGelu;
    case MatmulGelu::kBackward:
      return MatmulEpilogue::kGeluBackward;
  }
  return MatmulEpilogue::kNone;
}

bool ScaleFits(const at::Tensor& scale, bool fp8, const at::Device& device) {
  return scale.defined() == fp8 &&
         (!fp8 || (scale.numel() == 1 && scale.scalar_type() == at::kFloat &&
                   scale.device() == device && AlignedAt(scale, 0)));
}

std::optional<kernels::MatmulProblem> ProblemOf(const at::Tensor& out, const at::Tensor& a,
                                                const at::Tensor& b,
                                                const DeviceMatmulOptions& options) {
  const bool fp32 = out.scalar_type() == at::kFloat;
  const bool fp8 = c10::isFloat8Type(a.scalar_type());
  const auto takes = [&](const at::Tensor& x) {
    return IsMatrix(x, fp8 ? x.scalar_type() : at::kBFloat16, out.device());
  };
  if (!takes(a) || !takes(b) || c10::isFloat8Type(b.scalar_type()) != fp8 ||
      !IsMatrix(out, fp32 ? at::kFloat : at::kBFloat16, out.device()) ||
      !BiasFits(options.bias, out) || !GeluFits(options, out, fp8) ||
      !ScaleFits(options.a_scale, fp8, out.device()) ||
      !ScaleFits(options.b_scale, fp8, out.device())) {
    return std::nullopt;
  }
  const auto type_of_a = TypeOf(a.scalar_type());
  const auto type_of_b = TypeOf(b.scalar_type());
  const auto of_a = LayoutOf(a);
  const auto of_b = LayoutOf(b);
  const auto of_out = LayoutOf(out);
  if (!type_of_a.has_value() || !type_of_b.has_value() || !of_a.has_value() || !of_b.has_value() ||
      !of_out.has_value() || of_out->transposed) {
    return std::nullopt;
  }
  return kernels::MatmulProblem{
      .m = out.size(0),
      .n = out.size(1),
      .k = a.size(1),
      .transpose_a = of_a->transposed,
      .transpose_b = of_b->transposed,
      .a = *type_of_a,
      .b = *type_of_b,
      .out = fp32 ? kernels::MatmulType::kFloat32 : kernels::MatmulType::kBFloat16,
      .epilogue = EpilogueOf(options),
      .keep_gelu_input = options.gelu == MatmulGelu::kForward && options.gelu_input.defined(),
      .accumulate = options.accumulate,
      .a_stride = of_a->stride,
      .b_stride = of_b->stride,
      .out_stride = of_out->stride};
}

// REQUIRES: plans.mutex is held.
void WarnOnce(Plans& plans, const kernels::MatmulProblem& problem, const absl::Status& why) {
  const bool gelu = problem.epilogue >= kernels::MatmulEpilogue::kGelu;
  if (std::exchange(gelu ? plans.warned_of_gelu : plans.warned, true)) {
    return;
  }
  DT_LOG(Warning) << (gelu ? "GELU is a pass over memory of its own on a GPU: "
                           : "matrix products on a GPU take ATen's, and gradients are copied to "
                             "where they are summed: ")
                  << why.message();
}

// REQUIRES: plans.mutex is held.
const kernels::Matmul* PlanOf(Plans& plans, const GpuLaunch& launch, int device,
                              const kernels::MatmulProblem& problem) {
  const auto key = std::make_pair(device, problem);
  if (const auto found = plans.made.find(key); found != plans.made.end()) {
    return found->second.get();
  }
  if (plans.made.size() >= kPlansMax) {
    plans.made.clear();
  }
  auto made = launch.kernels().create_matmul(problem, kWorkspaceMax);
  if (!made.ok()) {
    WarnOnce(plans, problem, made.status());
  }
  return plans.made.emplace(key, made.ok() ? *std::move(made) : nullptr).first->second.get();
}

}  // namespace

bool HasDeviceMatmul(const at::Tensor& out) {
  return OnGpu(out) && HasKernels(out.device()) &&
         GpuLaunch(out).kernels().create_matmul != nullptr;
}

bool DeviceMatmul(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                  const DeviceMatmulOptions& options) {
  if (!HasDeviceMatmul(out)) {
    return false;
  }
  const auto problem = ProblemOf(out, a, b, options);
  if (!problem.has_value()) {
    return false;
  }
  RECORD_FUNCTION("dtrain::matmul", Inputs(a, b));
  const GpuLaunch launch(out);
  Plans& plans = ThePlans();
  const std::lock_guard lock(plans.mutex);  // A plan is launched by one thread at a time.
  const kernels::Matmul* const plan = PlanOf(plans, launch, out.device().index(), *problem);
  if (plan == nullptr) {
    return false;
  }
  // LibTorch's allocator gives it to nobody before the stream has passed the product.
  const at::Tensor workspace =
      at::empty({static_cast<int64_t>(plan->workspace_bytes())}, out.options().dtype(at::kByte));
  ThrowUnlessOk(plan->Launch(
      {.a = a.const_data_ptr(),
       .b = b.const_data_ptr(),
       .out = out.mutable_data_ptr(),
       .bias = options.bias.defined() ? options.bias.const_data_ptr() : nullptr,
       .gelu_input = options.gelu_input.defined() ? options.gelu_input.mutable_data_ptr() : nullptr,
       .a_scale = options.a_scale.defined() ? options.a_scale.const_data_ptr<float>() : nullptr,
       .b_scale = options.b_scale.defined() ? options.b_scale.const_data_ptr<float>() : nullptr},
      workspace.numel() > 0 ? workspace.mutable_data_ptr() : nullptr, launch.stream()));
  return true;
}

void ForgetDeviceMatmuls() {
  Plans& plans = ThePlans();
  const std::lock_guard lock(plans.mutex);
  plans.made.clear();
  plans.warned = plans.warned_of_gelu = false;
}

}  // namespace dtrain::ops
