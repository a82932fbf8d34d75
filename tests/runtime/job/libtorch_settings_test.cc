// Tests what a job sets in LibTorch. They have a process of their own, because the settings are the
// process's.
#include <gtest/gtest.h>

#include <string>

#include "ATen/ATen.h"
#include "ATen/Context.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/job.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/testing/cluster.h"

namespace dtrain::libtorch_settings_test {
namespace {

// LibTorch's deterministic mode would fill each new tensor with NaN: one more pass over every
// workspace and output, which changes no bits of a program that writes before it reads.
absl::Status ExpectNoFill(const std::string& run_dir, bool deterministic) {
  at::globalContext().setDeterministicFillUninitializedMemory(true);  // LibTorch's default.
  DT_ASSIGN_OR_RETURN(
      const auto job,
      Job::Create({.program = "libtorch_settings_test",
                   .overrides = {"train_batch_size=1", "device=cpu",
                                 absl::StrCat("deterministic=", deterministic ? "true" : "false")},
                   .run_dir = run_dir}));
  const at::Context& libtorch = at::globalContext();
  if (libtorch.deterministicAlgorithms() != deterministic) {
    return absl::InternalError("LibTorch's algorithms are not those that were asked for");
  }
  if (libtorch.deterministicFillUninitializedMemory()) {
    return absl::InternalError("LibTorch fills new tensors in its deterministic mode");
  }
  const at::Tensor fresh = at::empty({int64_t{1} << 20});
  return fresh.isnan().all().item<bool>() ? absl::InternalError("a new tensor is filled with NaN")
                                          : absl::OkStatus();
}

TEST(LibTorchSettingsTest, NoTensorIsFilledBeforeItIsWritten) {
  for (const bool deterministic : {true, false}) {
    const testing::TempFolder folder;
    const auto results = testing::RunRanks({.size = 1}, [&](testing::RankContext&) {
      return ExpectNoFill(folder.path() + "/run", deterministic);
    });
    EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  }
}

// The test above would see it: LibTorch does fill tensors where nobody turns that off.
TEST(LibTorchSettingsTest, LibTorchsOwnDeterministicModeFillsThem) {
  const auto results = testing::RunRanks({.size = 1}, [](testing::RankContext&) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
    return at::empty({int64_t{1} << 20}).isnan().all().item<bool>()
               ? absl::OkStatus()
               : absl::InternalError("LibTorch left a new tensor as it was");
  });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
}

}  // namespace
}  // namespace dtrain::libtorch_settings_test
