#include "base/status.h"

#include <cerrno>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/device_error.h"
#include "base/system/resource_limits.h"

namespace dtrain {
namespace {

constexpr char kDeviceError[] = "dtrain/device_error";

}  // namespace

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kResourceExhausted:
      return kExitTemporary;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitBug;
  }
}

absl::Status Annotate(const absl::Status& status, absl::string_view prefix) {
  if (status.ok()) {
    return status;
  }
  absl::Status annotated(status.code(), absl::StrCat(prefix, ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

absl::Status ErrnoStatus(int error_number, absl::string_view what) {
  const std::string text = absl::StrCat(what, ": ", std::generic_category().message(error_number),
                                        error_number == EAGAIN ? "" : LimitsBehind(error_number));
  switch (error_number) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EEXIST:
      return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    case EINVAL:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case ENOEXEC:
      return absl::InvalidArgumentError(text);
    case ETIMEDOUT:
      return absl::DeadlineExceededError(text);
    case EIO: {
      absl::Status status = absl::UnavailableError(text);
      MarkDeviceError(status);
      return status;
    }
    default:
      return absl::UnavailableError(text);
  }
}

bool IsDeviceError(const absl::Status& status) {
  return status.GetPayload(kDeviceError).has_value();
}

void MarkDeviceError(absl::Status& status) { status.SetPayload(kDeviceError, absl::Cord()); }

}  // namespace dtrain
