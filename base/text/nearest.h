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

// Of `names`, the one that a `name` which is certainly wrong was most likely meant to be: the one
// with the smallest edit distance. "" when even that is further than a third of the name's length
// (at least 2 edits are allowed) or shares no letter with it. With up to three letters a replaced
// letter makes another word ("ema" is no "eta"), so there only letters that are added, left out or
// swapped count.
std::string Nearest(absl::string_view name, const std::vector<std::string>& names);

// The same for a `name` that may be right, such as one that a program defines: at most 2 edits, or
// 1 where it has fewer than six letters. "" also when `name` is one of `names`.
std::string Misspelt(absl::string_view name, const std::vector<std::string>& names);

// "unknown command lst; did you mean list? There are: list, show, verify". `prefix` stands before
// the names that the message repeats: "bench " makes "unknown command bench comn; did you mean
// bench comm? ...".
std::string UnknownCommand(absl::string_view prefix, absl::string_view given,
                           const std::vector<std::string>& names);

// "unknown option --rank; did you mean --ranks?", or only its first half when none of `names` is
// near. `given` and `names` begin with their dashes.
std::string UnknownOption(absl::string_view given, const std::vector<std::string>& names);

}  // namespace dtrain
