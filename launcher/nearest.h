// Spelling help: the known name nearest to a misspelt one. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain::launcher {

// The element of `names` with the smallest edit distance to `name`, or "" when even that one is
// further than a third of the name's length (at least 2 edits are allowed).
std::string Nearest(absl::string_view name, const std::vector<std::string>& names);

}  // namespace dtrain::launcher
