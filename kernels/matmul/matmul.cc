#include "kernels/matmul/matmul.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dl/open_once.h"
#include "base/status.h"
#include "kernels/cuda/cuda_launch.h"

namespace dtrain::kernels {
namespace {

// The functions that are called, from the library.
struct CublasLt {
  decltype(cublasLtCreate)* create;
  decltype(cublasLtGetStatusString)* status_string;
  decltype(cublasLtMatmulDescCreate)* desc_create;
  decltype(cublasLtMatmulDescDestroy)* desc_destroy;
  decltype(cublasLtMatmulDescSetAttribute)* desc_set;
  decltype(cublasLtMatrixLayoutCreate)* layout_create;
  decltype(cublasLtMatrixLayoutDestroy)* layout_destroy;
  decltype(cublasLtMatmulPreferenceCreate)* preference_create;
  decltype(cublasLtMatmulPreferenceDestroy)* preference_destroy;
  decltype(cublasLtMatmulPreferenceSetAttribute)* preference_set;
  decltype(cublasLtMatmulAlgoGetHeuristic)* heuristic;
  decltype(cublasLtMatmul)* matmul;

  absl::Status Check(const char* what, cublasStatus_t status) const {
    return status == CUBLAS_STATUS_SUCCESS
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat(what, ": ", status_string(status)));
  }
};

absl::StatusOr<CublasLt> BindCublasLt(const DynamicLibrary& library) {
  CublasLt lt{};
  DT_RETURN_IF_ERROR(library.Bind("cublasLtCreate", &lt.create));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtGetStatusString", &lt.status_string));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmulDescCreate", &lt.desc_create));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmulDescDestroy", &lt.desc_destroy));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmulDescSetAttribute", &lt.desc_set));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatrixLayoutCreate", &lt.layout_create));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatrixLayoutDestroy", &lt.layout_destroy));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmulPreferenceCreate", &lt.preference_create));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmulPreferenceDestroy", &lt.preference_destroy));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmulPreferenceSetAttribute", &lt.preference_set));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmulAlgoGetHeuristic", &lt.heuristic));
  DT_RETURN_IF_ERROR(library.Bind("cublasLtMatmul", &lt.matmul));
  return lt;
}

// The handle of the calling thread's current device, made once for each: cublasLt ties a handle to
// the device that is current when it is made.
absl::StatusOr<cublasLtHandle_t> HandleOf(const CublasLt& lt) {
  static std::mutex mutex;
  static auto* const made = new std::map<int, cublasLtHandle_t>();
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::InternalError(absl::StrCat("cudaGetDevice: ", cudaGetErrorName(error)));
  }
  const std::lock_guard lock(mutex);
  const auto found = made->find(device);
  if (found != made->end()) {
    return found->second;
  }
  cublasLtHandle_t handle = nullptr;
  DT_RETURN_IF_ERROR(lt.Check("cublasLtCreate", lt.create(&handle)));
  return made->emplace(device, handle).first->second;
}

cudaDataType_t TypeOf(MatmulType type) {
  switch (type) {
    case MatmulType::kFloat32:
      return CUDA_R_32F;
    case MatmulType::kBFloat16:
      return CUDA_R_16BF;
    case MatmulType::kE4m3:
      return CUDA_R_8F_E4M3;
    case MatmulType::kE5m2:
      return CUDA_R_8F_E5M2;
  }
  return CUDA_R_32F;
}

cublasLtEpilogue_t EpilogueOf(const MatmulProblem& problem) {
  const bool keep = problem.keep_gelu_input;
  switch (problem.epilogue) {
    case MatmulEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case MatmulEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case MatmulEpilogue::kGelu:
      return keep ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
    case MatmulEpilogue::kGeluBias:
      return keep ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
    case MatmulEpilogue::kGeluBackward:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

bool HasBias(MatmulEpilogue epilogue) {
  return epilogue == MatmulEpilogue::kBias || epilogue == MatmulEpilogue::kGeluBias;
}

constexpr uint32_t kAlignment = 16;  // Bytes, as CheckBuffers asks for.

class LtMatmul final : public Matmul {
 public:
  LtMatmul(const CublasLt& lt, cublasLtHandle_t handle, const MatmulProblem& problem)
      : lt_(lt), handle_(handle), problem_(problem) {}
  LtMatmul(const LtMatmul&) = delete;
  LtMatmul& operator=(const LtMatmul&) = delete;
  ~LtMatmul() override {
    for (cublasLtMatrixLayout_t layout : {first_, second_, out_}) {
      if (layout != nullptr) {
        lt_.layout_destroy(layout);
      }
    }
    if (desc_ != nullptr) {
      lt_.desc_destroy(desc_);
    }
  }

  absl::Status Plan(const MatmulPlan& plan, size_t workspace_bytes_max) {
    DT_RETURN_IF_ERROR(lt_.Check("cublasLtMatmulDescCreate",
                                 lt_.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    const auto operation = [](const MatmulOperand& x) {
      return x.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    };
    DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, operation(plan.first)));
    DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, operation(plan.second)));
    DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(problem_)));
    // The heuristic learns from these pointers what is asked for, and alignments. Where a scale's
    // is null it may choose a way that takes none, and a launch would ignore the scale.
    const auto* const aligned = reinterpret_cast<const void*>(uintptr_t{kAlignment});
    if (fp8()) {
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, aligned));
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, aligned));
    }
    if (HasBias(problem_.epilogue)) {
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(problem_.out)));
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned));
    }
    with_gelu_input_ = plan.with_gelu_input;
    if (with_gelu_input_) {
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, problem_.n));
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned));
    }
    DT_RETURN_IF_ERROR(Layout(plan.first, &first_));
    DT_RETURN_IF_ERROR(Layout(plan.second, &second_));
    DT_RETURN_IF_ERROR(Layout(plan.out, &out_));
    return Choose(workspace_bytes_max);
  }

  size_t workspace_bytes() const override { return chosen_.workspaceSize; }

  absl::Status Launch(const MatmulBuffers& buffers, void* workspace,
                      CudaStream stream) const override {
    RequireStream(stream);
    DT_RETURN_IF_ERROR(CheckBuffers(buffers, workspace));
    const void* const bias = buffers.bias;
    if (HasBias(problem_.epilogue)) {
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    }
    if (with_gelu_input_) {
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, buffers.gelu_input));
    }
    if (fp8()) {
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, buffers.b_scale));
      DT_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, buffers.a_scale));
    }
    const float alpha = 1;
    const float beta = problem_.accumulate ? 1 : 0;
    return lt_.Check("cublasLtMatmul",
                     lt_.matmul(handle_, desc_, &alpha, buffers.b, first_, buffers.a, second_,
                                &beta, buffers.out, out_, buffers.out, out_, &chosen_.algo,
                                workspace, chosen_.workspaceSize, stream));
  }

 private:
  bool fp8() const { return problem_.a == MatmulType::kE4m3 || problem_.a == MatmulType::kE5m2; }

  template <class Value>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, const Value& value) const {
    return lt_.Check("cublasLtMatmulDescSetAttribute",
                     lt_.desc_set(desc_, attribute, &value, sizeof(value)));
  }

  absl::Status Layout(const MatmulOperand& x, cublasLtMatrixLayout_t* layout) const {
    return lt_.Check("cublasLtMatrixLayoutCreate",
                     lt_.layout_create(layout, TypeOf(x.type), static_cast<uint64_t>(x.rows),
                                       static_cast<uint64_t>(x.columns), x.stride));
  }

  absl::Status Choose(size_t workspace_bytes_max) {
    cublasLtMatmulPreference_t preference = nullptr;
    DT_RETURN_IF_ERROR(
        lt_.Check("cublasLtMatmulPreferenceCreate", lt_.preference_create(&preference)));
    int found = 0;
    cublasStatus_t status = lt_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace_bytes_max, sizeof(workspace_bytes_max));
    // Without these it takes every pointer for one of 256 bytes, as an allocation's; those of the
    // flat gradient buffer are where a parameter lies in it.
    const uint32_t alignment = kAlignment;
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      if (status == CUBLAS_STATUS_SUCCESS) {
        status = lt_.preference_set(preference, which, &alignment, sizeof(alignment));
      }
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = lt_.heuristic(handle_, desc_, first_, second_, out_, out_, preference, 1, &chosen_,
                             &found);
    }
    lt_.preference_destroy(preference);
    DT_RETURN_IF_ERROR(lt_.Check("cublasLtMatmulAlgoGetHeuristic", status));
    return found > 0 ? lt_.Check("cublasLt's algorithm", chosen_.state)
                     : absl::InternalError(
                           absl::StrCat("cublasLt has no algorithm for this product "
                                        "within ",
                                        workspace_bytes_max, " bytes of workspace; allow more"));
  }

  absl::Status CheckBuffers(const MatmulBuffers& buffers, const void* workspace) const {
    const auto lacking = [](const char* name) {
      return absl::InvalidArgumentError(
          absl::StrCat("matmul: ", name, " is missing or not at a 16-byte address"));
    };
    const auto usable = [](const void* p) { return p != nullptr && Aligned16(p); };
    if (!usable(buffers.a) || !usable(buffers.b) || !usable(buffers.out)) {
      return lacking("a, b or out");
    }
    if (HasBias(problem_.epilogue) && !usable(buffers.bias)) {
      return lacking("bias");
    }
    if (with_gelu_input_ && !usable(buffers.gelu_input)) {
      return lacking("GELU's input");
    }
    if (fp8() && (!usable(buffers.a_scale) || !usable(buffers.b_scale))) {
      return lacking("a scale of an FP8 factor");
    }
    return chosen_.workspaceSize > 0 && !usable(workspace) ? lacking("workspace")
                                                           : absl::OkStatus();
  }

  const CublasLt lt_;
  const cublasLtHandle_t handle_;
  const MatmulProblem problem_;
  bool with_gelu_input_ = false;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr;
  cublasLtMatrixLayout_t second_ = nullptr;
  cublasLtMatrixLayout_t out_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Matmul>> CreateMatmul(const MatmulProblem& problem,
                                                     size_t workspace_bytes_max) {
  DT_ASSIGN_OR_RETURN(const MatmulPlan plan, PlanMatmul(problem));
  DT_ASSIGN_OR_RETURN(
      const CublasLt* const lt,
      OpenOnce<CublasLt>({"libcublasLt.so.13", "libcublasLt.so"},
                         absl::NotFoundError("no cublasLt (it comes with torch)"), BindCublasLt));
  DT_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, HandleOf(*lt));
  auto matmul = std::make_unique<LtMatmul>(*lt, handle, problem);
  DT_RETURN_IF_ERROR(matmul->Plan(plan, workspace_bytes_max));
  return matmul;
}

}  // namespace dtrain::kernels
