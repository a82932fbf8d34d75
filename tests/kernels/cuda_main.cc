// Runs the tests of CUDA kernels where there is a GPU. Without one the program says SKIPPED and
// ends with 77, which ctest reports as skipped, not passed.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("SKIPPED: no CUDA device (%s); no CUDA kernel was tested\n",
                error == cudaSuccess ? "count 0" : cudaGetErrorString(error));
    return 77;
  }
  return RUN_ALL_TESTS();
}
