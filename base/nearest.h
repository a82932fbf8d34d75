// Spelling help: the known name nearest to a misspelt one, and the error that says so. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain {

// How many letters must be added, left out, replaced or swapped with their neighbour to make `b` of
// `a`. Takes time and memory for a.size() * b.size() letters.
size_t EditDistance(absl::string_view a, absl::string_view b);

// The element of `names` with the smallest edit distance to `name`, or "" when even that one is
// further than a third of the name's length (at least 2 edits are allowed) or shares no letter
// with it.
std::string Nearest(absl::string_view name, const std::vector<std::string>& names);

// "unknown command lst; did you mean list? There are: list, show, verify". `prefix` stands before
// the names that the message repeats: "bench " makes "unknown command bench comn; did you mean
// bench comm? ...".
std::string UnknownCommand(absl::string_view prefix, absl::string_view given,
                           const std::vector<std::string>& names);

}  // namespace dtrain
