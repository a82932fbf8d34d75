#include "runtime/job/error_file.h"

#include "absl/strings/str_cat.h"
#include "base/json.h"

namespace dtrain {

std::string TorchErrorJson(const absl::Status& status, absl::Time detected) {
  const Json json = {
      {"message",
       {{"message", absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message())},
        {"extraInfo",
         {{"py_callstack", ""}, {"timestamp", absl::StrCat(absl::ToUnixSeconds(detected))}}}}}};
  return DumpJson(json);
}

}  // namespace dtrain
