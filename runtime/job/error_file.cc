#include "runtime/job/error_file.h"

#include "absl/strings/str_cat.h"
#include "base/device_error.h"
#include "base/json.h"

namespace dtrain {

bool IsFirstHand(const absl::Status& status) {
  const bool is_victim =
      absl::IsAborted(status) || (absl::IsUnavailable(status) && !IsDeviceError(status));
  return !status.ok() && !absl::IsCancelled(status) && !is_victim;
}

std::string TorchErrorJson(const absl::Status& status, absl::Time detected) {
  const Json json = {
      {"message",
       {{"message", absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message())},
        {"extraInfo",
         {{"py_callstack", ""}, {"timestamp", absl::StrCat(absl::ToUnixSeconds(detected))}}}}}};
  return DumpJson(json);
}

}  // namespace dtrain
