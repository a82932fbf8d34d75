// In a process of its own: oneDNN reads its variable once, at the first product.
#include "base/system/hidden_tiles.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace dtrain::hidden_tiles_test {
namespace {

TEST(HiddenTilesTest, Bf16ProductsRunWhateverTheHypervisorSaysOfTiles) {
  unsetenv("ONEDNN_MAX_CPU_ISA");
  AvoidHiddenTiles(/*tell=*/true);
  EXPECT_EQ(std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr, AmxTilesAreHidden());
  const at::Tensor a = at::ones({64, 64}, at::kBFloat16);
  EXPECT_EQ(at::mm(a, a).sum().item<float>(), 64.0F * 64.0F * 64.0F);
}

TEST(HiddenTilesTest, LeavesTheUsersChoiceAlone) {
  setenv("ONEDNN_MAX_CPU_ISA", "AVX2", /*overwrite=*/1);
  AvoidHiddenTiles(/*tell=*/true);
  EXPECT_STREQ(std::getenv("ONEDNN_MAX_CPU_ISA"), "AVX2");
}

}  // namespace
}  // namespace dtrain::hidden_tiles_test
