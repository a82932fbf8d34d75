// cublasLt as kernels/matmul/matmul.cc calls it, without products: a launch writes to the result's
// first number what its scales make of 1.
//
// It ties a handle to the device that is current when it is made, and its heuristic reads off the
// descriptor what a way must do, as the real one's does: a way that was chosen while the pointers
// of scales were null applies none.
#include "tests/device_emulation/fake_cublaslt.h"

#include <cublasLt.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

namespace {

dtrain::emulation::FakeCublasLt& Shared() {
  static dtrain::emulation::FakeCublasLt shared;
  return shared;
}

struct Handle {
  int device = 0;
};

struct Descriptor {
  std::map<int, std::vector<char>> attributes;
  const float* Scale(cublasLtMatmulDescAttributes_t attribute) const {
    const float* pointer = nullptr;
    const auto found = attributes.find(attribute);
    if (found != attributes.end()) {
      std::memcpy(&pointer, found->second.data(), sizeof(pointer));
    }
    return pointer;
  }
  bool has_scales() const {
    return Scale(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) != nullptr &&
           Scale(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) != nullptr;
  }
};

bool IsHere(cublasLtHandle_t handle) {
  return reinterpret_cast<const Handle*>(handle)->device == Shared().current_device();
}

}  // namespace

#define DTRAIN_EXPORTED extern "C" __attribute__((visibility("default")))

DTRAIN_EXPORTED dtrain::emulation::FakeCublasLt* dtrain_fake_cublaslt() { return &Shared(); }

DTRAIN_EXPORTED cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ++Shared().handles;
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle{Shared().current_device()});
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_ARCH_MISMATCH ? "the handle is another device's" : "an error";
}

DTRAIN_EXPORTED cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc,
                                                        cublasComputeType_t, cudaDataType_t) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Descriptor);
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Descriptor*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t
cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                               const void* value, size_t bytes) {
  const auto* const from = static_cast<const char*>(value);
  reinterpret_cast<Descriptor*>(desc)->attributes[attribute].assign(from, from + bytes);
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout,
                                                          cudaDataType, uint64_t, uint64_t,
                                                          int64_t) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<int*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t
cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t
cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (!IsHere(handle)) {
    return CUBLAS_STATUS_ARCH_MISMATCH;
  }
  results[0] = {};
  results[0].algo.data[0] = reinterpret_cast<const Descriptor*>(desc)->has_scales() ? 1 : 0;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

DTRAIN_EXPORTED cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              const void*, const void*, cublasLtMatrixLayout_t,
                                              const void*, cublasLtMatrixLayout_t, const void*,
                                              const void*, cublasLtMatrixLayout_t, void* out,
                                              cublasLtMatrixLayout_t,
                                              const cublasLtMatmulAlgo_t* algo, void*, size_t,
                                              cudaStream_t) {
  if (!IsHere(handle)) {
    return CUBLAS_STATUS_ARCH_MISMATCH;
  }
  const auto& descriptor = *reinterpret_cast<const Descriptor*>(desc);
  for (const auto scale :
       {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER}) {
    if (reinterpret_cast<uintptr_t>(descriptor.Scale(scale)) % 16 != 0) {
      return CUBLAS_STATUS_NOT_SUPPORTED;  // So does cublasLt 13.0 on an H100.
    }
  }
  const bool scales = algo->data[0] == 1 && descriptor.has_scales();
  *static_cast<float*>(out) = scales ? *descriptor.Scale(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) *
                                           *descriptor.Scale(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)
                                     : 1;
  return CUBLAS_STATUS_SUCCESS;
}
