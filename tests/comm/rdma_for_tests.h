// Has the ranks of a test talk over RDMA: over the fake, or over this host's devices where the
// variable DTRAIN_TEST_VERBS is "real" (tests/roce runs the same tests so, on soft-RoCE).
#pragma once

#include <cstdlib>
#include <string>

#include "comm/group.h"
#include "comm/transport/rdma/fake/fake_verbs.h"

namespace dtrain::comm {

inline bool RealVerbsInTests() {
  const char* const value = std::getenv("DTRAIN_TEST_VERBS");
  return value != nullptr && std::string(value) == "real";
}

inline void UseRdma(GroupOptions& options) {
  static FakeVerbs fake;
  options.allow_shared_memory = false;
  options.network = Network::kRdma;
  options.rdma.verbs = RealVerbsInTests() ? nullptr : &fake;
}

}  // namespace dtrain::comm
