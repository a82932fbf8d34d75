// The version of this dtrain. Defined in a file that CMake writes (cmake/version.cc.in), so that a
// new commit recompiles nothing else. Constants.
#pragma once

namespace dtrain {

extern const char* const kVersion;  // "0.1.0".
extern const char* const kCommit;   // "" outside a git checkout.

}  // namespace dtrain
