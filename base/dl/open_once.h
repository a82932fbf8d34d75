// The functions that a process takes from a shared library that it may lack: the library is opened
// at the first call and stays mapped, because its threads and handles outlive their users.
// Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dl/dynamic_library.h"

namespace dtrain {

// Opens the first of `names` that loads and takes its functions by `bind`. Later calls for the type
// `Functions` get the same table, or the same error, without another try. `missing` is the error
// where no library loads, and says what to install; the loader's text is added to it.
// REQUIRES: all calls for one type give the same arguments.
template <typename Functions>
absl::StatusOr<const Functions*> OpenOnce(
    const std::vector<std::string>& names, const absl::Status& missing,
    absl::FunctionRef<absl::StatusOr<Functions>(const DynamicLibrary&)> bind) {
  static const auto* const opened =
      new absl::StatusOr<Functions>([&]() -> absl::StatusOr<Functions> {
        absl::StatusOr<DynamicLibrary> library = DynamicLibrary::Open(names);
        if (!library.ok()) {
          return absl::Status(missing.code(),
                              absl::StrCat(missing.message(), ": ", library.status().message()));
        }
        absl::StatusOr<Functions> functions = bind(*library);
        if (functions.ok()) {
          library->LeakOnPurpose();
        }
        return functions;
      }());
  if (!opened->ok()) {
    return opened->status();
  }
  return &**opened;
}

}  // namespace dtrain
