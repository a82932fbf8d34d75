// The stack that a rank left in its log. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace dtrain::launcher {

// The frames of the last stack in `lines`, with readable names, at most `frames_max`: one that
// base/system/crash_stack.h wrote, or lines as sanitizers, gdb and LibTorch write them. Empty:
// there is none.
std::vector<std::string> StackIn(absl::Span<const std::string> lines, size_t frames_max);

}  // namespace dtrain::launcher
