#include "comm/nccl/nccl_status.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::comm {

absl::Status NcclStatus(NcclApi& api, NcclResult result, NcclComm* comm, absl::string_view what) {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) {
    return absl::OkStatus();
  }
  std::string text = absl::StrCat(what, ": ", api.ErrorString(result));
  if (comm != nullptr) {
    const std::string last = api.LastError(comm);
    absl::StrAppend(&text, last.empty() ? "" : " (", last, last.empty() ? "" : ")");
  }
  switch (result) {
    case NcclResult::kRemoteError:
    case NcclResult::kSystemError:
      return absl::UnavailableError(text);
    case NcclResult::kInvalidArgument:
      return absl::InvalidArgumentError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status CudaStatus(CudaApi& api, CudaResult result, absl::string_view what) {
  if (result == CudaResult::kSuccess) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat(what, ": ", api.ErrorString(result)));
}

absl::StatusOr<NcclDType> ToNcclDType(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return NcclDType::kFloat32;
    case DType::kBFloat16:
      return NcclDType::kBFloat16;
    case DType::kFloat16:
      return NcclDType::kFloat16;
    case DType::kFloat64:
      return NcclDType::kFloat64;
    case DType::kInt32:
      return NcclDType::kInt32;
    case DType::kInt64:
      return NcclDType::kInt64;
    case DType::kUInt8:
    case DType::kBool:
      return NcclDType::kUint8;
  }
  return absl::InvalidArgumentError("unknown element type");
}

bool IsFloating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 ||
         dtype == DType::kFloat64;
}

}  // namespace dtrain::comm
