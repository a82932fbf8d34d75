// Checks whether bytes are UTF-8 (RFC 3629: no overlong forms, no surrogates). Pure.
#pragma once

#include "absl/strings/string_view.h"

namespace dtrain {

bool IsUtf8(absl::string_view text);

}  // namespace dtrain
