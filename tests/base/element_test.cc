// Elements of every type as numbers and back, at addresses that are not aligned.
#include "base/numeric/element.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>

namespace dtrain::element_test {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                            DType::kInt32,   DType::kInt64,    DType::kUInt8,   DType::kBool};

TEST(Element, SmallIntegersAreTheSameNumberInEveryType) {
  for (const DType dtype : kTypes) {
    for (const double value : {0.0, 1.0, 7.0, 255.0}) {
      std::byte bytes[9] = {};
      PutNumber(dtype, value, bytes + 1);
      EXPECT_EQ(NumberAt(dtype, bytes + 1), value) << DTypeName(dtype);
      for (size_t i = DTypeBytes(dtype) + 1; i < sizeof(bytes); ++i) {
        EXPECT_EQ(bytes[i], std::byte{}) << DTypeName(dtype) << " wrote beyond its bytes";
      }
    }
  }
}

TEST(Element, ATypeKeepsItsOwnRangeAndPrecision) {
  const auto through = [](DType dtype, double value) {
    std::byte bytes[8] = {};
    PutNumber(dtype, value, bytes);
    return NumberAt(dtype, bytes);
  };
  EXPECT_EQ(through(DType::kFloat64, 0.1), 0.1);
  EXPECT_EQ(through(DType::kFloat32, 0.1), static_cast<double>(0.1F));
  EXPECT_EQ(through(DType::kBFloat16, 257), 256) << "8 bits, a tie to even";
  EXPECT_EQ(through(DType::kBFloat16, 259), 260);
  EXPECT_EQ(through(DType::kFloat16, 2049), 2048) << "11 bits, a tie to even";
  EXPECT_EQ(through(DType::kFloat16, 70000), std::numeric_limits<double>::infinity());
  EXPECT_EQ(through(DType::kInt32, -2147483648.0), -2147483648.0);
  EXPECT_EQ(through(DType::kInt64, 0x1p62), 0x1p62);
}

}  // namespace
}  // namespace dtrain::element_test
