// Whether the tests of CUDA kernels run on the emulated device.
#pragma once

namespace dtrain::emulation {

inline bool emulated = false;  // emulated_main.cc sets it before the tests.
// Whether the second of the two orders is used, in which a missing barrier shows in the smallest
// shape that has it.
inline bool descending = false;

}  // namespace dtrain::emulation
