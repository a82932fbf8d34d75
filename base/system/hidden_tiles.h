// CPUs whose hypervisor announces AMX and hides its tiles.
//
// oneDNN, LibTorch's library of products, takes AMX for bf16 when CPUID leaf 7 announces it, and
// lays its tiles out by leaf 1Dh. Some hypervisors pass the first on and answer the second with
// zeros (seen under Firecracker on a Xeon): a process then dies of SIGILL in its first bf16
// product.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dtrain {

// Whether this CPU announces AMX tiles and says nothing of their shape. In the header, since the
// build asks it too: tests that make no Job need the variable from ctest.
inline bool AmxTilesAreHidden() {
#if defined(__x86_64__)
  constexpr unsigned kAmxTileBit = 1U << 24;  // Of EDX, leaf 7.
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxTileBit) == 0) {
    return false;
  }
  // EAX of leaf 1Dh: the highest palette, at least 1 where there are tiles.
  return __get_cpuid_count(0x1D, 0, &a, &b, &c, &d) == 0 || a == 0;
#else
  return false;
#endif
}

// Where they are hidden, has oneDNN do without AMX, by its variable ONEDNN_MAX_CPU_ISA, and with
// `tell` warns of it; leaves the variable alone where it is set.
// REQUIRES: before the process's first product (oneDNN reads it once).
void AvoidHiddenTiles(bool tell);

}  // namespace dtrain
