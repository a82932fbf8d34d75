// A checkpoint's content as text, for tests that compare what runs have saved.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::testing {

// Hashes of all files of the checkpoint of `step` in the run directory `folder`, whatever attempt
// wrote it, and its records. Empty: there is none.
std::string SavedStep(const std::string& folder, int64_t step);

// The lines of rank 0's metrics that contain `name` in quotes.
std::string RecordsOf(const std::string& folder, absl::string_view name);

}  // namespace dtrain::testing
