// A CPU that multiplies slower in 2-byte types than in fp32: one warning, of rank 0, with how much.
#include "runtime/job/slow_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/Parallel.h"
#include "dtrain/engine.h"
#include "runtime/job/announce.h"
#include "runtime/job/job_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::slow_products_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Line final : torch::nn::Module {
  Line() { weight = register_parameter("weight", at::ones({8, 8})); }
  at::Tensor weight;
};

TEST(SlowProducts, TheWarningHasTheRatioAndBothRates) {
  EXPECT_EQ(SlowProductsWarning("bf16", {.fp32 = 44e9, .narrow = 3.14e9}),
            "on this CPU matrix products in bf16 take 14.0 times as long as in fp32 (3.14 and 44 "
            "GFLOP/s); to train faster, set bf16.enabled=false, or use a GPU or a CPU with "
            "instructions for bf16");
  EXPECT_THAT(SlowProductsWarning("fp16", {.fp32 = 40e9, .narrow = 0.1e9}),
              AllOf(HasSubstr("in fp16 take 400.0 times"), HasSubstr("set fp16.enabled=false,")));
}

TEST(SlowProducts, EmulatedFp8IsNamedBesideOrWithoutTheOtherType) {
  const std::string both = SlowProductsWarning("bf16", {.fp32 = 40e9, .narrow = 4e9, .fp8 = 16e9});
  EXPECT_THAT(both, HasSubstr("in bf16 take 10.0 times"));
  EXPECT_THAT(both, HasSubstr("and in FP8, which is emulated, 2.5 times"));
  EXPECT_THAT(both, HasSubstr("set fp8.enabled=false and bf16.enabled=false,"));
  const std::string fp8 = SlowProductsWarning("bf16", {.fp32 = 40e9, .narrow = 70e9, .fp8 = 16e9});
  EXPECT_THAT(fp8, HasSubstr("in FP8, which is emulated, take 2.5 times"));
  EXPECT_THAT(fp8, AllOf(HasSubstr("set fp8.enabled=false,"), Not(HasSubstr("bf16"))));
}

TEST(SlowProducts, WhatIsNotMuchSlowerIsNoReasonForAWarning) {
  EXPECT_EQ(SlowProductsWarning("bf16", {.fp32 = 44e9, .narrow = 80e9}), "");
  EXPECT_EQ(SlowProductsWarning("bf16", {.fp32 = 44e9, .narrow = 30e9, .fp8 = 30e9}), "");
  EXPECT_NE(SlowProductsWarning("bf16", {.fp32 = 46e9, .narrow = 30e9}), "");
}

class SlowProductsOfAJob : public ::testing::Test {
 protected:
  // A job on a machine with these rates.
  std::unique_ptr<Job> MakeJob(std::vector<std::string> settings, ProductRates rates) {
    settings.push_back("train_batch_size=1");
    auto job = testing::MakeTestJob({.run_dir = folder_.path(), .overrides = settings});
    EXPECT_TRUE(job.ok()) << job.status();
    (*job)->state().measure_products = [this, rates](const Config&) {
      ++measured_;
      return rates;
    };
    return *std::move(job);
  }
  // The log of making `engines` engines.
  std::string Said(Job& job, int engines) {
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < engines; ++i) {
      Line line;
      const auto engine = Engine::Create(job, line);
      EXPECT_TRUE(engine.ok()) << engine.status();
    }
    return ::testing::internal::GetCapturedStderr();
  }
  testing::TempFolder folder_;
  int measured_ = 0;
};

constexpr ProductRates kSlow = {.fp32 = 40e9, .narrow = 4e9, .fp8 = 10e9};

int Lines(const std::string& said) {
  int lines = 0;
  for (size_t at = said.find("times as long"); at != std::string::npos;
       at = said.find("\n", at), at = said.find("times as long", at)) {
    ++lines;
  }
  return lines;
}

TEST_F(SlowProductsOfAJob, AreSaidOnceWhateverTheNumberOfEngines) {
  for (const char* const type : {"bf16", "fp16"}) {
    measured_ = 0;
    const auto job = MakeJob({std::string(type) + ".enabled=true"}, kSlow);
    const std::string said = Said(*job, 2);
    EXPECT_EQ(Lines(said), 1) << said;
    EXPECT_THAT(said, HasSubstr(std::string("products in ") + type + " take 10.0 times"));
    EXPECT_EQ(measured_, 1);
  }
}

TEST_F(SlowProductsOfAJob, AreNotMeasuredInFp32NorOnOtherRanks) {
  const auto fp32 = MakeJob({}, kSlow);
  EXPECT_EQ(Lines(Said(*fp32, 1)), 0);
  const auto other = MakeJob({"bf16.enabled=true"}, kSlow);
  other->state().env.rank = 1;
  ::testing::internal::CaptureStderr();
  WarnOfSlowProducts(other->state());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(measured_, 0);
}

TEST_F(SlowProductsOfAJob, AFastMachineSaysNothing) {
  const auto job = MakeJob({"bf16.enabled=true"}, {.fp32 = 40e9, .narrow = 90e9});
  EXPECT_EQ(Lines(Said(*job, 1)), 0);
  EXPECT_EQ(measured_, 1);
}

TEST_F(SlowProductsOfAJob, MeasuringDrawsNoNumberOfTheRunsAndKnowsWhatIsUsed) {
  at::set_num_threads(1);
  at::manual_seed(11);
  const at::Tensor expected = at::rand({3});
  at::manual_seed(11);
  const auto bf16 = MakeJob({"bf16.enabled=true"}, {});
  const auto fp16 = MakeJob({"fp16.enabled=true"}, {});
  const auto fp8 = MakeJob({"bf16.enabled=true", "fp8.enabled=true"}, {});
  for (const Job* const job : {bf16.get(), fp16.get(), fp8.get()}) {
    const ProductRates rates = MeasureProducts(job->config());
    EXPECT_GT(rates.fp32, 0);
    EXPECT_GT(rates.narrow, 0);
    EXPECT_EQ(rates.fp8 > 0, job == fp8.get());
  }
  EXPECT_TRUE(at::rand({3}).equal(expected));
}

}  // namespace
}  // namespace dtrain::slow_products_test
