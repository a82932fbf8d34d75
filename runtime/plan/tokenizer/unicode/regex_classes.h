// Classes of characters for regular expressions of PCRE2, with the members that they have in
// Oniguruma by Unicode 16.0, whatever Unicode PCRE2 was built with. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::plan {

// The members of \p{NAME} as they stand between brackets, or, `negated`, all others. `name` is a
// general category, such as "L" or "Lu", or a script. Empty: it is neither, or a script whose
// members, or others, are not known by Unicode 16.0.
std::string PropertyClass(absl::string_view name, bool negated);

// The same of \w within brackets: alphabetic characters, marks, decimal digits and connectors.
std::string WordClass(bool negated);

// \w outside of brackets has these too: there Oniguruma asks a table of Latin-1.
inline constexpr absl::string_view kWordsOfLatin1 = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// If \w within brackets has it.
bool IsWordCharacter(uint32_t code_point);

}  // namespace dtrain::plan
