// The value of data.train: token files, or parts of a mixture. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// A list of strings, for which a string stands too, or of objects {"files", "weight"}, in which
// "files" is a list of strings and "weight" a number, 1 if it is left out. InvalidArgument begins
// with `key` and names the part: unknown or missing members, a weight below 0, weights that sum
// to 0, strings beside objects.
absl::StatusOr<Json> CheckDataSources(const char* key, const Json& value);

// The parts of a checked value; a list of strings is one part.
std::vector<DataPart> DataParts(const Json& checked);

}  // namespace dtrain::plan
