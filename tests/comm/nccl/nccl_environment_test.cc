// The variables of NCCL that dtrain sets. It keeps the value of one that is already set.
#include "comm/nccl/nccl_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

namespace dtrain::comm::nccl_environment_test {
namespace {

using testing::HasSubstr;

constexpr char kOrder[] = "NCCL_LAUNCH_ORDER_IMPLICIT";

TEST(NcclEnvironment, CommunicatorsAreLaunchedInTheOrderOfTheProgramWhereNobodyChose) {
  const auto missing = MissingNcclVariables({{"NCCL_DEBUG", "INFO"}});
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0].name, kOrder);
  EXPECT_EQ(missing[0].value, "1");
  EXPECT_THAT(missing[0].reason, HasSubstr("communicators"));
  EXPECT_TRUE(MissingNcclVariables({{kOrder, "0"}}).empty());
}

TEST(NcclEnvironment, SetsTheProcesssVariablesAndKeepsWhatTheUserSet) {
  ASSERT_EQ(unsetenv(kOrder), 0);
  SetNcclVariables();
  EXPECT_EQ(ReadEnvironment().at(kOrder), "1");
  ASSERT_EQ(setenv(kOrder, "0", 1), 0);
  SetNcclVariables();
  EXPECT_EQ(ReadEnvironment().at(kOrder), "0");
  ASSERT_EQ(unsetenv(kOrder), 0);
}

}  // namespace
}  // namespace dtrain::comm::nccl_environment_test
