// Every operation on every transport between processes and between threads, against a serial
// oracle.
#include "comm/group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/float16.h"
#include "base/prng.h"
#include "base/status.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankKind;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

TEST(GroupTest, TwoProcessesReduce) {
  for (const RankResult& result : RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
         DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, context.group_options()));
         std::vector<float> values(1000, static_cast<float>(context.rank + 1));
         DT_ASSIGN_OR_RETURN(const Work work,
                             group->AllReduce({values.data(), values.size() * 4}, ReduceOp::kSum));
         DT_RETURN_IF_ERROR(work.Wait());
         for (const float value : values) {
           if (value != 3) {
             return absl::InternalError(absl::StrFormat("got %g", value));
           }
         }
         return group->Barrier(Deadline::Infinite());
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::comm
