// Makes the ranks of a test use RDMA: over the fake, or over this host's devices if the variable
// DTRAIN_TEST_VERBS is "real" (tests/roce runs the same tests in this way on soft-RoCE).
#pragma once

#include <cstdlib>
#include <string>

#include "comm/group.h"
#include "comm/transport/rdma/fake/fake_verbs.h"

namespace dtrain::comm {

// A value for RdmaOptions::timeout: 8.6 s without an answer. Soft-RoCE of Linux 6.1 loses count
// when it repeats a write: its peer refuses the packets (IBV_WC_REM_INV_REQ_ERR) or delivers an
// immediate twice. On a busy host an emulated guest is silent for longer than a second while
// nothing is lost.
inline constexpr int kGuestTimeout = 21;

inline bool RealVerbsInTests() {
  const char* const value = std::getenv("DTRAIN_TEST_VERBS");
  return value != nullptr && std::string(value) == "real";
}

inline void UseRdma(GroupOptions& options) {
  static FakeVerbs fake;
  options.allow_shared_memory = false;
  options.network = Network::kRdma;
  if (RealVerbsInTests()) {
    options.rdma.timeout = kGuestTimeout;
  } else {
    options.rdma.verbs = &fake;
  }
}

}  // namespace dtrain::comm
