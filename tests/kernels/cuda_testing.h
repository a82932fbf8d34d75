// Helpers that the tests of CUDA kernels share: device copies, a stream, and distances.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <type_traits>

#include "base/numeric/dtype.h"
#include "tests/device_emulation/emulated.h"
#include "tests/kernels/kernel_testing.h"

namespace dtrain::kernels::testing {

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess)

// Returns when the bytes are on the device. A copy from pageable memory alone may return before,
// and the streams of these tests do not wait for it.
inline cudaError_t CopyToDevice(void* to, const void* from, size_t bytes) {
  const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

// Device copies of host buffers. A shift of a few elements takes the way without 16-byte loads; no
// kernel may write to those.
template <class T>
class Device {
 public:
  explicit Device(const Buffer<T>& host, int64_t shift = 0)
      : size_(host.size()), shift_(shift), before_(static_cast<size_t>(shift) * sizeof(T), 'b') {
    const int64_t elements = std::max<int64_t>(1, size_ + shift_);
    Check(cudaMalloc(&data_, static_cast<size_t>(elements) * sizeof(T)));
    Check(CopyToDevice(data_, before_.data(), before_.size()));
    Check(CopyToDevice(get(), host.get(), Bytes()));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    std::string before(before_.size(), '\0');
    Check(cudaMemcpy(before.data(), data_, before.size(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(before, before_) << "a kernel wrote before the beginning";
    cudaFree(data_);
  }

  T* get() const { return static_cast<T*>(data_) + shift_; }
  // The device's copy, read after `stream` is done.
  Buffer<T> Read(cudaStream_t stream) const {
    Buffer<T> host(size_);
    Check(cudaStreamSynchronize(stream));
    Check(cudaMemcpy(host.get(), get(), Bytes(), cudaMemcpyDeviceToHost));
    if (emulation::emulated) {
      AsAGpuLeavesNans(host);
    }
    return host;
  }

 private:
  static void Check(cudaError_t error) {
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }
  // A GPU's arithmetic gives one NaN, whatever its operands were; the emulated device's is a CPU's,
  // which hands the payload of an operand on.
  static void AsAGpuLeavesNans(Buffer<T>& values) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, BFloat16>) {
      constexpr uint32_t kCanonical = 0x7fffffffU;
      for (int64_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values(i))) {
          testing::Assign(values[i], std::bit_cast<float>(kCanonical));
        }
      }
    }
  }
  size_t Bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  int64_t size_;
  int64_t shift_;
  std::string before_;
  void* data_ = nullptr;
};

// A device copy of one struct, such as an optimizer's scalars.
template <class T>
class DeviceStruct {
 public:
  explicit DeviceStruct(const T& value) {
    Check(cudaMalloc(&data_, sizeof(T)));
    Check(CopyToDevice(data_, &value, sizeof(T)));
  }
  DeviceStruct(const DeviceStruct&) = delete;
  DeviceStruct& operator=(const DeviceStruct&) = delete;
  ~DeviceStruct() { cudaFree(data_); }

  T* get() const { return static_cast<T*>(data_); }
  T Read(cudaStream_t stream) const {
    T value;
    Check(cudaStreamSynchronize(stream));
    Check(cudaMemcpy(&value, data_, sizeof(T), cudaMemcpyDeviceToHost));
    return value;
  }

 private:
  static void Check(cudaError_t error) {
    ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
  }
  void* data_ = nullptr;
};

template <class T>
constexpr DType kDTypeOf = sizeof(T) == 4 ? DType::kFloat32 : DType::kBFloat16;

class Cuda : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  void TearDown() override { ASSERT_CUDA(cudaStreamDestroy(stream_)); }
  cudaStream_t stream_ = nullptr;
};

// Every element differs by at most `tolerance` relative to the largest magnitude of the buffer.
template <class T>
void ExpectClose(const Buffer<T>& got, const Buffer<T>& expected, double tolerance) {
  double largest = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(double{expected(i)}));
  }
  for (int64_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got(i), expected(i), tolerance * largest) << i;
  }
}

}  // namespace dtrain::kernels::testing
