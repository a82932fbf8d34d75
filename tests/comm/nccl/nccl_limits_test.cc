// The bounds of the time limits that an NCCL group learns, as its creation sets them.
#include <gtest/gtest.h>

#include <optional>

#include "comm/call_timeout.h"
#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_limits_test {
namespace {

// A shorter limit would end a job for a link that is down for a moment, or for a connection that
// NCCL makes at the first use of an algorithm.
TEST(NcclLimits, AGroupOnGpusLearnsNoShorterLimitThanTheirConnectionsNeedUnlessToldTo) {
  RunRanks(2, [](FakeRank& self) {
    const std::optional<absl::Duration> configured[] = {std::nullopt, absl::Seconds(5)};
    for (const auto& timeout_min : configured) {
      self.options.group.timeout_min = timeout_min;
      ++self.options.group.epoch;  // Each group has its own names in the store.
      auto group = self.MakeGroup();
      EXPECT_EQ(group->limits().least, timeout_min.value_or(kLeastDeviceTimeout));
      EXPECT_EQ(group->limits().most, self.options.group.timeout);
      auto split = group->Split(0, self.rank, "split");
      ASSERT_TRUE(split.ok()) << split.status();
      EXPECT_EQ((*split)->limits().least, group->limits().least);
      EXPECT_EQ((*split)->limits().most, group->limits().most);
      split->reset();
      group.reset();
    }
    self.ExpectClean();
  });
}

}  // namespace
}  // namespace dtrain::comm::nccl_limits_test
