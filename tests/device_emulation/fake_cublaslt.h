// A test's view of the fake libcublasLt.so.13 (fake_cublaslt.cc), which kernels/matmul/matmul.cc
// opens in place of NVIDIA's.
#pragma once

namespace dtrain::emulation {

struct FakeCublasLt {
  int (*current_device)() = nullptr;  // Set by the test: of the calling thread.
  int handles = 0;                    // Made so far.
};

inline constexpr char kFakeCublasLtSymbol[] = "dtrain_fake_cublaslt";

}  // namespace dtrain::emulation
