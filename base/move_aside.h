// Makes room for a new run without losing the old one.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace dtrain {

// Renames the folder `path` to the first of `path`.old-1, .old-2, ... that is free.
absl::Status MoveAside(const std::string& path);

}  // namespace dtrain
