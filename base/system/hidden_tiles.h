// Avoids AMX on CPUs whose hypervisor announces AMX and hides its tiles.
//
// oneDNN, LibTorch's library for matrix products, uses AMX for bf16 when CPUID leaf 7 announces it,
// and takes the tiles' shape from leaf 1Dh. Some hypervisors pass on the first leaf and answer the
// second with zeros (seen under Firecracker on a Xeon): a process then dies of SIGILL in its first
// bf16 product.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dtrain {

// Whether this CPU announces AMX tiles and does not report their shape. In the header because the
// build calls it too: tests that make no Job need the variable from ctest.
inline bool AmxTilesAreHidden() {
#if defined(__x86_64__)
  constexpr unsigned kAmxTileBit = 1U << 24;  // Bit of EDX, leaf 7.
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxTileBit) == 0) {
    return false;
  }
  // EAX of leaf 1Dh is the highest palette, at least 1 if there are tiles.
  return __get_cpuid_count(0x1D, 0, &a, &b, &c, &d) == 0 || a == 0;
#else
  return false;
#endif
}

// If tiles are hidden, turns AMX off in oneDNN by its variable ONEDNN_MAX_CPU_ISA, unless that is
// set, and with `tell` logs a warning.
// REQUIRES: before the process's first product (oneDNN reads it once).
void AvoidHiddenTiles(bool tell);

}  // namespace dtrain
