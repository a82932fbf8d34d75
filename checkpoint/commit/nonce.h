// Random names for temporary files, and to tell writers apart.
#pragma once

#include <string>

namespace dtrain::checkpoint {

// 16 hex digits from the kernel's generator. Thread-safe.
std::string RandomNonce();

}  // namespace dtrain::checkpoint
