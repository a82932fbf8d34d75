#include "comm/transport/rdma/wc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace dtrain::comm::wc_status_test {
namespace {

using ::testing::HasSubstr;

TEST(WcStatusTest, EveryStatusHasANameAMeaningAndARemedy) {
  std::set<std::string> names;
  for (int status = kWcSuccess + 1; status < 24; ++status) {
    const WcDescription description = DescriptionOf(status);
    EXPECT_TRUE(names.insert(std::string(description.name)).second) << status;
    EXPECT_EQ(description.name.substr(0, 7), "IBV_WC_");
    EXPECT_FALSE(description.meaning.empty());
    EXPECT_FALSE(description.remedy.empty());
  }
  for (const int unknown : {-1, 24, 1000}) {
    EXPECT_THAT(std::string(DescriptionOf(unknown).name), HasSubstr("does not know"));
  }
}

TEST(WcStatusTest, RetriesExceededPointAtThePath) {
  const std::string text = DescribeWc(kWcRetriesExceeded, 0x81, "mlx5_0/1", "DOWN");
  for (const char* const part :
       {"transport retry counter exceeded", "IBV_WC_RETRY_EXC_ERR = 12", "vendor error 0x81",
        "mlx5_0/1 is DOWN", "cable", "UDP port 4791", "PFC", "firewall"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(WcStatusTest, APortThatIsDownIsTheRemedyWhateverTheDeviceSaidFirst) {
  const int refused = 2;  // IBV_WC_LOC_QP_OP_ERR, which soft-RoCE gives in this case.
  EXPECT_THAT(DescribeWc(refused, 0, "rxe0/1", "DOWN"), HasSubstr("check the cable"));
  EXPECT_THAT(DescribeWc(refused, 0, "rxe0/1", "ACTIVE"), HasSubstr("report it"));
}

}  // namespace
}  // namespace dtrain::comm::wc_status_test
