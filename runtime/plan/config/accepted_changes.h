// --accept-change KEY: which keys of a run may get another value when it is resumed, because its
// checkpoints still fit. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// InvalidArgument, naming what is allowed: `key` is neither such a key of the table nor a section
// with one ("scheduler").
absl::Status CheckAcceptable(const std::string& key);

// Whether one of `accepted`, keys and sections, covers the difference and it may be accepted.
bool IsAccepted(const ConfigDifference& difference, const std::vector<std::string>& accepted);

// Whether its key may be accepted at all.
bool IsAcceptable(const ConfigDifference& difference);

// Why a resumed run must keep the value of a key that may not be accepted: "its checkpoints ...".
std::string WhyKept(absl::string_view key);

}  // namespace dtrain::plan
