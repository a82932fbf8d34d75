// Which dtrain this is. Defined in a file of their own that CMake writes (cmake/version.cc.in), so
// that a commit compiles nothing else again.
#pragma once

namespace dtrain {

extern const char* const kVersion;  // "0.1.0".
extern const char* const kCommit;   // "" outside a git checkout.

}  // namespace dtrain
