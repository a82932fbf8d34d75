// Runs the tests of CUDA kernels on the emulated device.
//   TEST [--order=ascending|descending] [flags of GoogleTest]
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/device_emulation/device.h"
#include "tests/device_emulation/emulated.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string order = argc > 1 ? argv[1] : "--order=ascending";
  if (order == "--order=descending") {
    dtrain::emulation::SetOrder(dtrain::emulation::Order::kDescending);
    dtrain::emulation::descending = true;
  } else if (order != "--order=ascending") {
    std::fprintf(stderr, "%s: neither --order=ascending nor --order=descending\n", order.c_str());
    return 64;
  }
  dtrain::emulation::emulated = true;
  return RUN_ALL_TESTS();
}
