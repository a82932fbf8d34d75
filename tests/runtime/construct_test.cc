// A model that is made of files: the same numbers, and no memory of its own.
#include "dtrain/construct.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ATen/ATen.h"
#include "dtrain/engine.h"
#include "runtime/engine/engine_state.h"
#include "tests/runtime/job_for_tests.h"
#include "torch/nn/modules/linear.h"

namespace dtrain {
namespace {

constexpr int64_t kWidth = 4096;  // 64 MiB of fp32.

int64_t AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kilobytes = 0;
  while (status >> word && word != "RssAnon:") {
  }
  status >> kilobytes;
  return kilobytes * 1024;
}

torch::nn::Linear Make() {
  at::manual_seed(11);
  return torch::nn::Linear(kWidth, kWidth);
}

class ConstructTest : public ::testing::Test {
 protected:
  std::unique_ptr<Job> MakeJob(int stage) {
    return *testing::MakeTestJob(
        {.run_dir = folder_.path(),
         .overrides = {"train_batch_size=1", "zero_optimization.stage=" + std::to_string(stage),
                       "zero_optimization.stage3_max_live_parameters=1000000"}});
  }
  testing::TempFolder folder_;
};

TEST_F(ConstructTest, LargeWeightsTakeNoMemoryAndHaveTheSameNumbers) {
  const auto job = MakeJob(3);
  const torch::nn::Linear plain = Make();
  const int64_t before = AnonymousBytes();
  const torch::nn::Linear model = Construct(*job, Make);
  EXPECT_LT(AnonymousBytes() - before, 4 * kWidth * kWidth / 4);
  EXPECT_TRUE(model->weight.equal(plain->weight));
  EXPECT_TRUE(model->bias.equal(plain->bias));
  const at::Tensor later = at::ones({kWidth, kWidth});  // The scope is over.
  EXPECT_GE(AnonymousBytes() - before, 4 * kWidth * kWidth);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    EXPECT_EQ(entry.path().filename().string().find("weight-"), std::string::npos)
        << "a file with a name stays behind when a rank is killed";
  }
}

TEST_F(ConstructTest, TheEngineTakesItsShareOfThem) {
  const auto job = MakeJob(3);
  torch::nn::Linear model = Construct(*job, Make);
  const torch::nn::Linear plain = Make();
  auto engine = Engine::Create(*job, *model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE(
      (*engine)->WithParameters([&] { EXPECT_TRUE(model->weight.equal(plain->weight)); }).ok());
}

TEST_F(ConstructTest, AtOtherStagesNothingIsDifferent) {
  const auto job = MakeJob(2);
  const int64_t before = AnonymousBytes();
  const torch::nn::Linear model = Construct(*job, Make);
  EXPECT_GE(AnonymousBytes() - before, 4 * kWidth * kWidth);
}

TEST_F(ConstructTest, AFolderThatCannotTakeFilesIsNamed) {
  const auto job = MakeJob(3);
  std::filesystem::remove_all(folder_.path());
  EXPECT_THAT([&] { Construct(*job, Make); },
              ::testing::ThrowsMessage<std::exception>(::testing::AllOf(
                  ::testing::HasSubstr(folder_.path()), ::testing::HasSubstr("--run-dir"))));
}

}  // namespace
}  // namespace dtrain
