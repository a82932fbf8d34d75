// How products are planned and launched by cublasLt, over a fake of the library.
#include "kernels/matmul/matmul.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>

#include "base/dl/dynamic_library.h"
#include "tests/device_emulation/fake_cublaslt.h"

namespace dtrain::kernels::matmul_test {
namespace {

constexpr size_t kWorkspaceMax = size_t{1} << 20;

int CurrentDevice() {
  int device = -1;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  return device;
}

emulation::FakeCublasLt& Fake() {
  static emulation::FakeCublasLt* const fake = [] {
    auto library = DynamicLibrary::Open({"libcublasLt.so.13"});
    EXPECT_TRUE(library.ok()) << library.status();
    emulation::FakeCublasLt* (*entry)() = nullptr;
    const absl::Status bound = library->Bind(emulation::kFakeCublasLtSymbol, &entry);
    EXPECT_TRUE(bound.ok()) << bound;
    library->LeakOnPurpose();
    emulation::FakeCublasLt* const made = entry();
    made->current_device = CurrentDevice;
    return made;
  }();
  return *fake;
}

// Memory that a product may be of, all of it zeros.
struct Memory {
  alignas(16) std::array<float, 1024> a{};
  alignas(16) std::array<float, 1024> b{};
  alignas(16) std::array<float, 1024> out{};
};

class MatmulTest : public ::testing::Test {
 protected:
  MatmulTest() {
    Fake();
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override { EXPECT_EQ(cudaSetDevice(0), cudaSuccess); }
  cudaStream_t stream_ = nullptr;
};

constexpr MatmulProblem kFp8{.m = 16,
                             .n = 16,
                             .k = 16,
                             .transpose_b = true,
                             .a = MatmulType::kE4m3,
                             .b = MatmulType::kE4m3,
                             .out = MatmulType::kFloat32};
constexpr MatmulProblem kBf16{.m = 16, .n = 16, .k = 16, .out = MatmulType::kFloat32};

TEST_F(MatmulTest, AnFp8ProductIsPlannedAsOneOfScaledFactors) {
  const auto matmul = CreateMatmul(kFp8, kWorkspaceMax);
  ASSERT_TRUE(matmul.ok()) << matmul.status();
  Memory memory;
  alignas(16) const float a_scale[] = {3, 4};
  alignas(16) const float b_scale = 0.5F;
  MatmulBuffers buffers{.a = memory.a.data(),
                        .b = memory.b.data(),
                        .out = memory.out.data(),
                        .a_scale = a_scale,
                        .b_scale = &b_scale};
  const absl::Status launched = (*matmul)->Launch(buffers, /*workspace=*/nullptr, stream_);
  ASSERT_TRUE(launched.ok()) << launched;
  EXPECT_EQ(memory.out[0], 1.5F) << "the way that was chosen ignores scales";
  buffers.a_scale = a_scale + 1;
  EXPECT_EQ((*matmul)->Launch(buffers, nullptr, stream_).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MatmulTest, EachDeviceHasAHandleOfItsOwn) {
  const int before = Fake().handles;
  Memory memory;
  for (const int device : {3, 4, 3}) {
    ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
    const auto matmul = CreateMatmul(kBf16, kWorkspaceMax);
    ASSERT_TRUE(matmul.ok()) << "device " << device << ": " << matmul.status();
    const absl::Status launched =
        (*matmul)->Launch({.a = memory.a.data(), .b = memory.b.data(), .out = memory.out.data()},
                          /*workspace=*/nullptr, stream_);
    EXPECT_TRUE(launched.ok()) << "device " << device << ": " << launched;
  }
  EXPECT_EQ(Fake().handles - before, 2);
}

}  // namespace
}  // namespace dtrain::kernels::matmul_test
