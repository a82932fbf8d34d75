#include "runtime/ops/fp8_matrix.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "runtime/ops/device_matmul.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/linear_products.h"

namespace dtrain::ops {
namespace {

using kernels::Fp8Format;

at::ScalarType TypeOf(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

kernels::ConstFlat FlatOf(const at::Tensor& x) {
  return {x.const_data_ptr(), x.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16};
}

// Zeros for the progress of a launch (kernels::Fp8ScaleProgress). The launches of a stream share
// them, in turn: they are made with its first scale and kept, since graphs hold their address.
//
// A scale that is captured before that has zeros of its own. They are the graph's memory, which
// each launch of the graph fills with zeros first, and which nobody fills when the capture fails.
at::Tensor ProgressOn(const at::Tensor& like, CudaStream stream) {
  static std::mutex mutex;
  static auto* const made = new std::map<std::pair<int, CudaStream>, at::Tensor>();
  static_assert(sizeof(kernels::Fp8ScaleProgress) == 2 * sizeof(int32_t));
  const std::lock_guard lock(mutex);
  const std::pair<int, CudaStream> key(like.device().index(), stream);
  if (const auto found = made->find(key); found != made->end()) {
    return found->second;
  }
  const at::Tensor progress = at::zeros({2}, like.options().dtype(at::kInt));
  if (!IsCaptured(stream)) {
    made->emplace(key, progress);
  }
  return progress;
}

// fp32 [], as Fp8Matrix has them.
struct Scales {
  at::Tensor scale, inverse;
};

void FillScales(const at::Tensor& x, Fp8Format format, const Scales& scales) {
  kernels::Fp8ScaleArgs args{.n = x.numel(),
                             .format = format,
                             .src = FlatOf(x),
                             .scale = scales.scale.mutable_data_ptr<float>(),
                             .inverse = scales.inverse.mutable_data_ptr<float>()};
  at::Tensor progress;  // Until the launch is queued.
  if (OnGpu(x)) {
    progress = ProgressOn(x, GpuLaunch(x).stream());
    args.progress = static_cast<kernels::Fp8ScaleProgress*>(progress.mutable_data_ptr());
  }
  Launch(x, args, kernels::Fp8ScaleCpu, &kernels::CudaKernelTable::fp8_scale);
}

// cublasLt reads a scale at a multiple of 16 bytes: elsewhere its product is not supported.
constexpr int64_t kScaleStride = 16 / sizeof(float);

Scales ScalesOf(const at::Tensor& x, Fp8Format format) {
  const at::Tensor both = at::empty({2, kScaleStride}, x.options().dtype(at::kFloat));
  Scales scales{both[0][0], both[1][0]};
  FillScales(x, format, scales);
  return scales;
}

// Codes of x, or of its transpose, to be filled.
at::Tensor CodesOf(const at::Tensor& x, at::IntArrayRef sizes, Fp8Format format) {
  return at::empty(sizes, x.options().dtype(TypeOf(format)));
}

uint8_t* BytesOf(const at::Tensor& codes) {
  return static_cast<uint8_t*>(codes.mutable_data_ptr());
}

void Cast(const at::Tensor& x, Fp8Format format, const at::Tensor& scale, const at::Tensor& codes) {
  const kernels::CastToFp8Args args{
      .n = x.numel(), .format = format, .src = FlatOf(x), .dst = BytesOf(codes)};
  if (OnGpu(x)) {
    const GpuLaunch launch(x);
    ThrowUnlessOk(
        launch.kernels().cast_to_fp8(args, scale.const_data_ptr<float>(), launch.stream()));
  } else {
    kernels::CastToFp8Cpu(args, *scale.const_data_ptr<float>(), TorchParallelFor);
  }
}

void RowsToFp8(const at::Tensor& x, Fp8Format format, const Fp8Matrix& matrix) {
  Launch(x,
         kernels::RowsToFp8Args{.rows = x.size(0),
                                .columns = x.size(1),
                                .format = format,
                                .src = FlatOf(x),
                                .dst = BytesOf(matrix.codes),
                                .inverse = matrix.inverse.mutable_data_ptr<float>()},
         kernels::RowsToFp8Cpu, &kernels::CudaKernelTable::rows_to_fp8);
}

Fp8Matrix RowsToFp8(const at::Tensor& x, Fp8Format format) {
  Fp8Matrix matrix{CodesOf(x, x.sizes(), format),
                   at::empty({x.size(0), 1}, x.options().dtype(at::kFloat))};
  RowsToFp8(x, format, matrix);
  return matrix;
}

// Also the codes as they are, where `codes` is defined.
void CastTransposed(const at::Tensor& x, Fp8Format format, const at::Tensor& scale,
                    const at::Tensor& codes, const at::Tensor& transposed) {
  const kernels::TransposeToFp8Args args{.rows = x.size(0),
                                         .columns = x.size(1),
                                         .format = format,
                                         .src = FlatOf(x),
                                         .dst = codes.defined() ? BytesOf(codes) : nullptr,
                                         .transposed = BytesOf(transposed)};
  if (OnGpu(x)) {
    const GpuLaunch launch(x);
    ThrowUnlessOk(
        launch.kernels().transpose_to_fp8(args, scale.const_data_ptr<float>(), launch.stream()));
  } else {
    kernels::TransposeToFp8Cpu(args, *scale.const_data_ptr<float>(), TorchParallelFor);
  }
}

// Nothing where they are one number. Without a word to autograd: who saved scales for a backward
// takes them as they are then.
void Overwrite(const at::Tensor& number, const at::Tensor& with) {
  if (number.const_data_ptr() != with.const_data_ptr()) {
    number.variable_data().copy_(with);
  }
}

at::Tensor Decoded(const Fp8Matrix& matrix) { return matrix.codes.to(at::kFloat) * matrix.inverse; }

}  // namespace

Fp8Matrix ToFp8(const at::Tensor& x, Fp8Format format, Fp8Options::Scaling scaling) {
  if (scaling == Fp8Options::Scaling::kRowwise) {
    return RowsToFp8(x, format);
  }
  const auto [scale, inverse] = ScalesOf(x, format);
  const at::Tensor codes = CodesOf(x, x.sizes(), format);
  Cast(x, format, scale, codes);
  return {codes, inverse, scale};
}

Fp8Both BothToFp8(const at::Tensor& x, Fp8Format format) {
  const auto [scale, inverse] = ScalesOf(x, format);
  const at::Tensor codes = CodesOf(x, x.sizes(), format);
  const at::Tensor transposed = CodesOf(x, {x.size(1), x.size(0)}, format);
  CastTransposed(x, format, scale, codes, transposed);
  return {{codes, inverse, scale}, {transposed, inverse, scale}};
}

void ToFp8Again(const at::Tensor& x, Fp8Format format, const Fp8Both& both) {
  const auto& [as_is, transposed] = both;
  const bool rowwise = as_is.inverse.dim() == 2;
  if (rowwise) {
    RowsToFp8(x, format, as_is);
    if (transposed.codes.defined()) {
      RowsToFp8(x.t().contiguous(), format, transposed);
    }
    return;
  }
  FillScales(x, format, {as_is.scale, as_is.inverse});
  if (!transposed.codes.defined()) {
    Cast(x, format, as_is.scale, as_is.codes);
    return;
  }
  Overwrite(transposed.scale, as_is.scale);
  Overwrite(transposed.inverse, as_is.inverse);
  CastTransposed(x, format, as_is.scale, as_is.codes, transposed.codes);
}

Fp8Matrix TransposedToFp8(const at::Tensor& x, Fp8Format format, const Fp8Matrix& known) {
  if (!known.scale.defined()) {
    return RowsToFp8(x.t().contiguous(), format);
  }
  const at::Tensor codes = CodesOf(x, {x.size(1), x.size(0)}, format);
  CastTransposed(x, format, known.scale, /*codes=*/{}, codes);
  return {codes, known.inverse, known.scale};
}

at::Tensor Fp8Product(const Fp8Matrix& a, const Fp8Matrix& b, at::ScalarType type, bool exact) {
  RECORD_FUNCTION("dtrain::fp8_product", Inputs(a.codes, b.codes));
  if (!a.codes.is_cuda()) {
    return at::mm(Decoded(a), Decoded(b).t()).to(type);
  }
  const bool rowwise = b.inverse.dim() == 2;
  // With scales of rows cuBLAS gives bf16 alone.
  return at::_scaled_mm(a.codes, b.codes.t(), a.inverse, rowwise ? b.inverse.t() : b.inverse,
                        /*bias=*/{}, /*scale_result=*/{}, rowwise ? at::kBFloat16 : type,
                        /*use_fast_accum=*/!exact)
      .to(type);
}

void Fp8ProductHome(const GradientHome& home, const Fp8Matrix& a, const Fp8Matrix& b) {
  const bool tensorwise = b.inverse.dim() == 0;
  if (tensorwise &&
      DeviceMatmul(home.place, a.codes, b.codes.t(),
                   {.accumulate = home.holds, .a_scale = a.inverse, .b_scale = b.inverse})) {
    return;
  }
  PutHome(home, Fp8Product(a, b, at::kFloat, /*exact=*/true));
}

}  // namespace dtrain::ops
