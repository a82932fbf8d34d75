// The plugin's CUDA kernels, on the emulated device, against plain loops over base's conversions.
#include <cuda_runtime.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/numeric/float16.h"
#include "base/numeric/prng.h"
#include "comm/nccl/plugin/nccl_kernels_cuda.h"
#include "gtest/gtest.h"

namespace dtrain::comm::nccl_kernels_test {
namespace {

float Widened(float x) { return x; }
float Widened(BFloat16 x) { return ToFloat(x); }
float Widened(Float16 x) { return ToFloat(x); }
void Round(float x, float& to) { to = x; }
void Round(float x, BFloat16& to) { to = ToBFloat16(x); }
void Round(float x, Float16& to) { to = ToFloat16(x); }

template <class T>
constexpr DType kDType = DType::kFloat32;
template <>
constexpr DType kDType<BFloat16> = DType::kBFloat16;
template <>
constexpr DType kDType<Float16> = DType::kFloat16;

// Lengths around a thread's eight elements and around a block's elements, and one that is more than
// the largest grid takes at once.
constexpr size_t kCounts[] = {1, 7, 8, 9, 255, 2048, 2049, 70'001, 8 * 256 * 4096 + 13};

// Device memory whose first element is `shift` elements behind an address for 16-byte loads.
template <class T>
class OnDevice {
 public:
  OnDevice(size_t count, size_t shift) : count_(count), shift_(shift) {
    EXPECT_EQ(cudaMalloc(&data_, (count + shift) * sizeof(T)), cudaSuccess);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }

  T* get() const { return data_ + shift_; }
  void Write(const std::vector<T>& host) {
    cudaMemcpy(get(), host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
  }
  std::vector<T> Read() const {
    std::vector<T> host(count_);
    cudaMemcpy(host.data(), get(), count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return host;
  }

 private:
  size_t count_;
  size_t shift_;
  T* data_ = nullptr;
};

template <class T>
std::vector<T> Values(size_t count, uint64_t seed) {
  std::vector<T> values(count);
  SplitMix64 random(seed);
  for (T& value : values) {
    Round(static_cast<float>(200 * random.Uniform() - 100), value);
  }
  return values;
}

template <class T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

const NcclKernels kKernels = CudaNcclKernels();

// No power of two: a sum that is scaled at its end has other bits than one of scaled parts.
constexpr float kThird = 1.0F / 3;

template <class T>
void TestParts(size_t count, int part_count, size_t shift, bool in_place) {
  const auto parts = Values<T>(count * static_cast<size_t>(part_count), 1);
  std::vector<T> expected(count);
  for (size_t i = 0; i < count; ++i) {
    float sum = Widened(parts[i]);
    for (int part = 1; part < part_count; ++part) {
      sum += Widened(parts[static_cast<size_t>(part) * count + i]);
    }
    Round(sum * kThird, expected[i]);
  }
  OnDevice<T> device_parts(parts.size(), shift);
  device_parts.Write(parts);
  const OnDevice<T> output(count, shift);
  T* const to =
      in_place ? device_parts.get() + (static_cast<size_t>(part_count) - 1) * count : output.get();
  ASSERT_EQ(kKernels.sum_parts_in_order(device_parts.get(), part_count, count, kDType<T>, kThird,
                                        to, nullptr),
            CudaResult::kSuccess);
  std::vector<T> got(count);
  cudaMemcpy(got.data(), to, count * sizeof(T), cudaMemcpyDeviceToHost);
  EXPECT_TRUE(SameBits(got, expected));
}

TEST(NcclKernels, PartsAreAddedInOrderIntoOneOfThemOrElsewhere) {
  for (const size_t count : kCounts) {
    for (const int parts : {1, 2, 3, 8}) {
      if (count > 100'000 && parts > 2) {
        continue;
      }
      for (const size_t shift : {0, 1}) {
        for (const bool in_place : {false, true}) {
          SCOPED_TRACE(testing::Message() << parts << " of " << count << " shift " << shift);
          TestParts<float>(count, parts, shift, in_place);
          TestParts<BFloat16>(count, parts, shift, in_place);
          TestParts<Float16>(count, parts, shift, in_place);
        }
      }
    }
  }
}

template <class T>
void TestSquares(size_t count, size_t shift) {
  auto values = Values<T>(count, 2);
  double expected = 0;
  for (const T value : values) {
    expected += double{Widened(value)} * double{Widened(value)};
  }
  OnDevice<T> data(count, shift);
  data.Write(values);
  const OnDevice<double> scratch(kKernels.scratch_bytes / sizeof(double), 0);
  const OnDevice<double> sum(1, 0);
  const auto squares = [&] {
    EXPECT_EQ(
        kKernels.sum_of_squares(data.get(), count, kDType<T>, sum.get(), scratch.get(), nullptr),
        CudaResult::kSuccess);
    return sum.Read()[0];
  };
  const double first = squares();
  EXPECT_NEAR(first, expected, 1e-12 * expected);
  EXPECT_EQ(squares(), first);
  Round(std::numeric_limits<float>::infinity(), values[count / 2]);
  data.Write(values);
  EXPECT_FALSE(std::isfinite(squares()));
  Round(std::numeric_limits<float>::quiet_NaN(), values[count - 1]);
  data.Write(values);
  EXPECT_TRUE(std::isnan(squares()));
}

TEST(NcclKernels, SquaresAgreeWithFp64AndShowWhatIsNotFinite) {
  for (const size_t count : kCounts) {
    for (const size_t shift : {0, 1}) {
      SCOPED_TRACE(testing::Message() << count << " shift " << shift);
      TestSquares<float>(count, shift);
      TestSquares<BFloat16>(count, shift);
      TestSquares<Float16>(count, shift);
    }
  }
}

TEST(NcclKernels, ValuesAreAddedInOrder) {
  const std::vector<double> host = {1e16, 1, -1e16, 3.5};
  OnDevice<double> values(host.size(), 0);
  values.Write(host);
  const OnDevice<double> sum(1, 0);
  ASSERT_EQ(kKernels.sum_in_order(values.get(), 4, sum.get(), nullptr), CudaResult::kSuccess);
  EXPECT_EQ(sum.Read()[0], ((1e16 + 1) + -1e16) + 3.5);
}

template <class From, class To>
void TestCast(size_t count, size_t shift) {
  auto values = Values<From>(count, 3);
  Round(1e30F, values[count / 2]);  // Infinite in fp16.
  std::vector<To> expected(count);
  for (size_t i = 0; i < count; ++i) {
    Round(Widened(values[i]), expected[i]);
  }
  OnDevice<From> from(count, shift);
  from.Write(values);
  const OnDevice<To> to(count, shift);
  ASSERT_EQ(kKernels.cast(from.get(), kDType<From>, to.get(), kDType<To>, count, nullptr),
            CudaResult::kSuccess);
  EXPECT_TRUE(SameBits(to.Read(), expected));
}

TEST(NcclKernels, CastsRoundToNearestEven) {
  for (const size_t count : kCounts) {
    for (const size_t shift : {0, 1}) {
      SCOPED_TRACE(testing::Message() << count << " shift " << shift);
      TestCast<float, BFloat16>(count, shift);
      TestCast<float, Float16>(count, shift);
      TestCast<BFloat16, float>(count, shift);
      TestCast<Float16, float>(count, shift);
    }
  }
}

TEST(NcclKernels, NothingIsDoneForNoElementsAndOtherTypesAreRefused) {
  EXPECT_EQ(kKernels.sum_parts_in_order(nullptr, 2, 0, DType::kFloat32, 1, nullptr, nullptr),
            CudaResult::kSuccess);
  EXPECT_EQ(kKernels.cast(nullptr, DType::kFloat32, nullptr, DType::kBFloat16, 0, nullptr),
            CudaResult::kSuccess);
  EXPECT_EQ(kKernels.sum_parts_in_order(nullptr, 2, 1, DType::kInt64, 1, nullptr, nullptr),
            CudaResult::kInvalidValue);
  EXPECT_EQ(kKernels.sum_of_squares(nullptr, 1, DType::kInt64, nullptr, nullptr, nullptr),
            CudaResult::kInvalidValue);
  EXPECT_EQ(kKernels.cast(nullptr, DType::kInt64, nullptr, DType::kFloat32, 1, nullptr),
            CudaResult::kInvalidValue);
}

}  // namespace
}  // namespace dtrain::comm::nccl_kernels_test
