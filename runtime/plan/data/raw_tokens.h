// Whether bytes can be u16 tokens without a header, which nothing in them says. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::plan {

// Says what a file that begins with `head` (its first 1,024 bytes or all of it) is instead, and
// what to do: "it has an llm.c header; set data.format to auto". "" where it may be raw u16 tokens.
std::string WhyNotRawU16(absl::string_view head);

// Whether `head` begins with one of llm.c's magics, of whatever version.
bool HasLlmcHeader(absl::string_view head);

}  // namespace dtrain::plan
