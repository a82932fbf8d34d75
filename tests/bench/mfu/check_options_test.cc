#include "bench/mfu/check_options.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace dtrain::bench::check_options_test {
namespace {

std::string Refused(MfuOptions options) {
  const absl::Status status = CheckOptions("small", 64, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(CheckOptions, WithoutASequenceTheModelsLongestUpTo1024IsTaken) {
  for (const auto& [positions, sequence] : {std::pair(64, 64), std::pair(4096, 1024)}) {
    MfuOptions options;
    EXPECT_TRUE(CheckOptions("small", positions, options).ok());
    EXPECT_EQ(options.sequence, sequence);
  }
}

TEST(CheckOptions, ASequenceOfAllPositionsIsAllowedAndALongerOneNamesTheRange) {
  MfuOptions options{.sequence = 64};
  EXPECT_TRUE(CheckOptions("small", 64, options).ok());
  EXPECT_EQ(Refused({.sequence = 65}),
            "--seq 65 is longer than the model's 64 positions (small); allowed: 1 to 64");
}

TEST(CheckOptions, Bf16StatesGoWithEveryTypeThatHasMasters) {
  for (const char* const type : {"bf16", "fp8"}) {
    MfuOptions options{.device = "cuda", .dtype = type, .bf16_states = true};
    EXPECT_TRUE(CheckOptions("small", 64, options).ok()) << type;
  }
  EXPECT_EQ(Refused({.dtype = "fp32", .bf16_states = true}),
            "--bf16-states goes with --dtype bf16 or fp8, which keep fp32 masters of the weights; "
            "--dtype is fp32: take one of the two, or leave --bf16-states out");
}

TEST(CheckOptions, Fp8IsForAGpu) {
  EXPECT_EQ(Refused({.device = "cpu", .dtype = "fp8"}),
            "--dtype fp8 needs a GPU with FP8 matrix units (--device cuda); on a CPU: fp32, bf16");
}

}  // namespace
}  // namespace dtrain::bench::check_options_test
