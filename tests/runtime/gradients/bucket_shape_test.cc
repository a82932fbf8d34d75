#include <gtest/gtest.h>

#include <tuple>

#include "runtime/gradients/bucket_parts.h"

namespace dtrain::bucket_shape_test {
namespace {

std::vector<std::tuple<size_t, size_t, size_t>> TensorsIn(const plan::ParamLayout& layout,
                                                          plan::FlatRange range) {
  const comm::BucketShape shape = ShapeOf("bucket", range, layout);
  EXPECT_EQ(shape.elements, static_cast<size_t>(range.elements()));
  std::vector<std::tuple<size_t, size_t, size_t>> tensors;
  for (const comm::BucketTensor& tensor : shape.tensors) {
    tensors.emplace_back(tensor.start, tensor.rows, tensor.columns);
  }
  return tensors;
}

TEST(BucketShapeTest, HoldsTheWholeRowsOfEachTensor) {
  // Reversed: c at 0 to 120, b at 128 to 135, a at 160 to 460.
  const auto layout = plan::ParamLayout::Create({{"a", {30, 5, 2}, DType::kFloat32},
                                                 {"b", {7}, DType::kFloat32},
                                                 {"c", {12, 10}, DType::kFloat32}});
  ASSERT_TRUE(layout.ok()) << layout.status();
  using Tensors = std::vector<std::tuple<size_t, size_t, size_t>>;
  EXPECT_EQ(TensorsIn(*layout, {0, 480}), (Tensors{{0, 12, 10}, {128, 7, 1}, {160, 30, 10}}));
  EXPECT_EQ(TensorsIn(*layout, {0, 120}), (Tensors{{0, 12, 10}}));
  EXPECT_EQ(TensorsIn(*layout, {32, 192}), (Tensors{{8, 8, 10}, {96, 7, 1}, {128, 3, 10}}))
      << "rows 4 to 11 of c, and the first 3 of a";
  EXPECT_EQ(TensorsIn(*layout, {192, 199}), Tensors()) << "no whole row";
  EXPECT_EQ(TensorsIn(*layout, {130, 133}), (Tensors{{0, 3, 1}})) << "a vector's are elements";
}

}  // namespace
}  // namespace dtrain::bucket_shape_test
