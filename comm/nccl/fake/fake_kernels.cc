#include "comm/nccl/fake/fake_kernels.h"

#include "base/check.h"
#include "base/numeric/float16.h"

namespace dtrain::comm {
namespace {

FakeCuda* the_cuda = nullptr;

float LoadAs(const void* data, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[index];
    case DType::kBFloat16:
      return ToFloat(static_cast<const BFloat16*>(data)[index]);
    case DType::kFloat16:
      return ToFloat(static_cast<const Float16*>(data)[index]);
    default:
      DT_CHECK(false) << DTypeName(dtype);
      return 0;
  }
}

void StoreAs(float value, void* data, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[index] = ToBFloat16(value);
      return;
    case DType::kFloat16:
      static_cast<Float16*>(data)[index] = ToFloat16(value);
      return;
    default:
      DT_CHECK(false) << DTypeName(dtype);
  }
}

CudaResult SumOfSquares(const void* data, size_t count, DType dtype, double* sum, void* /*scratch*/,
                        CudaStream* stream) {
  return the_cuda->Enqueue(stream, [=] {
    double total = 0;
    for (size_t i = 0; i < count; ++i) {
      const double value = LoadAs(data, dtype, i);
      total += value * value;
    }
    *sum = total;
  });
}

CudaResult SumInOrder(const double* values, int count, double* sum, CudaStream* stream) {
  return the_cuda->Enqueue(stream, [=] {
    double total = 0;
    for (int i = 0; i < count; ++i) {
      total += values[i];
    }
    *sum = total;
  });
}

CudaResult SumPartsInOrder(const void* parts, int part_count, size_t count, DType dtype,
                           float scale, void* output, CudaStream* stream) {
  return the_cuda->Enqueue(stream, [=] {
    for (size_t i = 0; i < count; ++i) {
      float total = 0;
      for (int part = 0; part < part_count; ++part) {
        total += LoadAs(parts, dtype, static_cast<size_t>(part) * count + i);
      }
      StoreAs(scale * total, output, dtype, i);
    }
  });
}

CudaResult Cast(const void* from, DType from_dtype, void* to, DType to_dtype, size_t count,
                CudaStream* stream) {
  return the_cuda->Enqueue(stream, [=] {
    for (size_t i = 0; i < count; ++i) {
      StoreAs(LoadAs(from, from_dtype, i), to, to_dtype, i);
    }
  });
}

}  // namespace

NcclKernels MakeFakeKernels(FakeCuda* cuda) {
  the_cuda = cuda;
  NcclKernels kernels;
  kernels.sum_of_squares = SumOfSquares;
  kernels.sum_in_order = SumInOrder;
  kernels.sum_parts_in_order = SumPartsInOrder;
  kernels.cast = Cast;
  kernels.scratch_bytes = 64;
  return kernels;
}

}  // namespace dtrain::comm
