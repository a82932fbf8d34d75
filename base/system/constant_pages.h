// Maps the constants of the loaded libraries, which vector code may never get mapped by itself.
//
// A masked AVX-512 load whose mask is empty raises no page fault. Of a page that is not mapped it
// takes hundreds of cycles, each time, and the page stays unmapped. LibTorch's exp ends with such a
// load of a constant: where the page was not in the page cache when its neighbours were mapped, as
// at the first start on a node, the backward pass of attention took twice its time for the whole
// run, on one rank and not on its neighbour (seen on a Zen 5).
#pragma once

#include <cstdint>

namespace dtrain {

// Reads one byte of each page of constants of the program and of the libraries that are loaded now;
// gives the bytes of these pages. Libraries with more than kConstantsMax bytes of them are left
// out: those are code for GPUs. Thread-safe.
int64_t MapConstantPages();
inline constexpr int64_t kConstantsMax = int64_t{64} << 20;

}  // namespace dtrain
