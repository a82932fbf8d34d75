// Unicode's normal forms by utf8proc, as `tokenizers` makes them: characters that are newer than
// Unicode 10 stay as they are. Thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace dtrain::plan {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// The form of `text`: `text` itself when nothing changes, else the content of `storage`.
// REQUIRES: `text` is UTF-8 and is not in `storage`.
absl::string_view Normalized(NormalForm form, absl::string_view text, std::string* storage);

}  // namespace dtrain::plan
