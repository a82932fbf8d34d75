// The ranges of a step as a profiler sees them: through NVTX's own injection, without a GPU.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "ATen/ATen.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::nvtx_ranges_test {
namespace {

constexpr int kSteps = 3;
constexpr int kMicroBatches = 2;

class Net : public torch::nn::Module {
 public:
  Net() { weight = register_parameter("weight", at::ones({4, 4})); }
  at::Tensor weight;
};

struct Rows {
  absl::StatusOr<at::Tensor> Next() { return at::ones({2, 4}); }
};

// NVTX reads the variable when the process pushes its first range, so this program has one test.
TEST(NvtxRangesTest, EveryStepPushesTheFivePhasesAndPopsWhatItPushed) {
  ASSERT_EQ(setenv("NVTX_INJECTION64_PATH", DTRAIN_NVTX_COUNTER, /*overwrite=*/1), 0);
  void* const counter = dlopen(DTRAIN_NVTX_COUNTER, RTLD_NOW);
  ASSERT_NE(counter, nullptr) << dlerror();
  const auto count = reinterpret_cast<int64_t (*)(const char*)>(dlsym(counter, "DtrainNvtxCount"));
  ASSERT_NE(count, nullptr) << dlerror();

  const testing::TempFolder folder;
  auto job = testing::MakeTestJob(
      {.run_dir = folder.path(),
       .overrides = {"train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=2"}});
  ASSERT_TRUE(job.ok()) << job.status();
  Net net;
  auto engine = Engine::Create(**job, net);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Rows rows;
  for (int step = 1; step <= kSteps; ++step) {
    const int64_t popped = count(nullptr);
    const auto report = (*engine)->Step(rows, [&](const at::Tensor& x) {
      return Loss(x.matmul(net.weight).square().sum(), x.size(0));
    });
    ASSERT_TRUE(report.ok()) << report.status();
    for (const char* const phase : {"dtrain::data", "dtrain::forward", "dtrain::backward"}) {
      EXPECT_EQ(count(phase), step * kMicroBatches) << phase;
    }
    for (const char* const phase : {"dtrain::wait", "dtrain::update"}) {
      EXPECT_EQ(count(phase), step) << phase;
    }
    EXPECT_EQ(count(nullptr) - popped, 3 * kMicroBatches + 2) << "step " << step;
  }
}

}  // namespace
}  // namespace dtrain::nvtx_ranges_test
