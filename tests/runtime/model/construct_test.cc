// A model that is made of files: the same numbers, and no memory of its own.
#include "dtrain/construct.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ATen/ATen.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/modules/linear.h"

namespace dtrain::construct_test {
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

TEST_F(ConstructTest, AtOtherStagesWeightsAreMemoryAndHaveTheSameNumbers) {
  const auto job = MakeJob(2);
  const torch::nn::Linear plain = Make();
  const int64_t before = AnonymousBytes();
  torch::nn::Linear model = Construct(*job, Make);
  EXPECT_GE(AnonymousBytes() - before, 4 * kWidth * kWidth);
  EXPECT_TRUE(model->weight.equal(plain->weight));
  model = nullptr;
  EXPECT_LT(AnonymousBytes() - before, 4 * kWidth * kWidth / 4) << "given back after the scope";
}

int64_t MachineBytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

// The kernel would give the addresses and kill the process at one of its pages.
TEST_F(ConstructTest, WhatIsMoreThanTheMemoryThereIsRefusedBeforeItIsTouched) {
  const auto job = MakeJob(0);
  const int64_t before = AnonymousBytes();
  EXPECT_THAT([&] { Construct(*job, [] { return at::zeros({MachineBytes() / 4 + 1}); }); },
              ::testing::ThrowsMessage<std::exception>(
                  ::testing::AllOf(::testing::HasSubstr("the model's weights take more than"),
                                   ::testing::HasSubstr("zero_optimization.stage 3"))));
  // In many small parts as well, each of which would fit; and what is given up does not count.
  std::vector<at::Tensor> parts;
  int64_t made = 0;
  const auto build = [&] {
    while (true) {
      parts.push_back(at::empty({64 << 20}));  // 256 MiB whose pages nobody touches.
      at::empty({64 << 20});
      made += 256 << 20;
    }
    return 0;
  };
  EXPECT_THROW(Construct(*job, build), std::exception);
  EXPECT_LE(made, MachineBytes());
  EXPECT_GE(made, MachineBytes() / 8) << "the machine's other processes take the rest";
  EXPECT_LT(AnonymousBytes() - before, 64 << 20);
  parts.clear();
  EXPECT_EQ(Construct(*job, [] { return at::ones({1 << 20}); }).numel(), 1 << 20);
}

const Json kTooLarge = {{"vocab_size", 256},
                        {"hidden_size", 32768},
                        {"intermediate_size", 640},
                        {"num_hidden_layers", 6},
                        {"num_attention_heads", 4}};

TEST_F(ConstructTest, AModelThatWillNotFitIsRefusedByItsShape) {
  const auto job = MakeJob(0);
  const absl::Status refused = CheckModelFits(*job, kTooLarge);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(::testing::HasSubstr("million parameters"),
                               ::testing::HasSubstr("on each of 1 rank at zero_optimization.stage"),
                               ::testing::HasSubstr("but a rank has"),
                               ::testing::Not(::testing::HasSubstr("\n"))));
  Json small = kTooLarge;
  small["hidden_size"] = 64;
  EXPECT_TRUE(CheckModelFits(*job, small).ok());
  small.erase("vocab_size");
  EXPECT_THAT(std::string(CheckModelFits(*job, small).message()),
              ::testing::HasSubstr("vocab_size"));
}

TEST_F(ConstructTest, AFolderThatCannotTakeFilesIsNamed) {
  const auto job = MakeJob(3);
  std::filesystem::remove_all(folder_.path());
  EXPECT_THAT([&] { Construct(*job, Make); },
              ::testing::ThrowsMessage<std::exception>(::testing::AllOf(
                  ::testing::HasSubstr(folder_.path()), ::testing::HasSubstr("--run-dir"))));
}

}  // namespace
}  // namespace dtrain::construct_test
