// Spelling help: the known name nearest to a misspelt one, and the error that says so. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtrain {

// The number of letters that must be added, left out, replaced or swapped with their neighbour to
// turn `a` into `b`. Takes time and memory for a.size() * b.size() letters.
size_t EditDistance(absl::string_view a, absl::string_view b);

// The most likely intended name for a `name` that is certainly wrong: the one in `names` with the
// smallest edit distance. "" when that distance is more than a third of the name's length (at least
// 2 edits are allowed) or the two share no letter. In names of up to three letters a replaced
// letter makes another word ("ema" is not a misspelt "eta"), so only added, left out and swapped
// letters are accepted there.
std::string Nearest(absl::string_view name, const std::vector<std::string>& names);

// The same for a `name` that may be correct, such as one that a program defines: at most 2 edits,
// or 1 if it has fewer than six letters. "" also when `name` is one of `names`.
std::string Misspelt(absl::string_view name, const std::vector<std::string>& names);

// "unknown command lst; did you mean list? There are: list, show, verify". `prefix` comes before
// the names in the message: "bench " makes "unknown command bench comn; did you mean bench comm?
// ...".
std::string UnknownCommand(absl::string_view prefix, absl::string_view given,
                           const std::vector<std::string>& names);

// "unknown option --rank; did you mean --ranks?", or only its first half when none of `names` is
// near. `given` and `names` begin with their dashes.
std::string UnknownOption(absl::string_view given, const std::vector<std::string>& names);

}  // namespace dtrain
