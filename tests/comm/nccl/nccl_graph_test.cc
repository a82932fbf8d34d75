// Collectives of the NCCL group that wait for a place inside a graph of the compute stream, over
// the fakes.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/comm/nccl/forked_ranks.h"
#include "tests/comm/nccl/graph_of_buckets.h"

namespace dtrain::comm::nccl_graph_test {
namespace {

constexpr size_t kCount = 9001;

TEST(NcclGraphTest, CallsWaitForTheirPlacesAndNotForTheGraphsEnd) {
  for (const int size : {1, 2, 3}) {
    RunRanks(size, [](FakeRank& self) {
      std::vector<float*> buckets;
      for (int b = 0; b < 3; ++b) {
        buckets.push_back(static_cast<float*>(self.Allocate(kCount * sizeof(float))));
      }
      {
        int launches = 0;
        GraphOfBuckets graph(&self.cuda, buckets.size(), [&](size_t b) {
          const auto value = static_cast<float>(10 * launches + static_cast<int>(b) + self.rank);
          std::fill_n(buckets[b], kCount, value);
        });
        self.options.compute_stream = graph.stream();
        auto group = self.MakeGroup();
        for (launches = 1; launches <= 3; ++launches) {
          graph.Launch();
          std::vector<Work> works;
          for (size_t b = 0; b < buckets.size(); ++b) {
            const Buffer bucket{
                buckets[b], kCount * sizeof(float), DType::kFloat32, {DeviceKind::kCuda, 0}};
            auto work = group->AllReduce(bucket, ReduceOp::kMax, {.after = graph.place(b)});
            ASSERT_TRUE(work.ok()) << work.status();
            works.push_back(*work);
          }
          for (const Work& work : works) {
            ASSERT_TRUE(work.Wait(Deadline::After(absl::Seconds(20))).ok());
          }
          for (size_t b = 0; b < buckets.size(); ++b) {
            const int most = 10 * launches + static_cast<int>(b) + self.size - 1;
            EXPECT_EQ(std::count(buckets[b], buckets[b] + kCount, static_cast<float>(most)),
                      kCount);
          }
          EXPECT_TRUE(graph.End()) << "a call waited for the graph's end";
        }
        group.reset();
      }
      self.ExpectClean();
    });
  }
}

}  // namespace
}  // namespace dtrain::comm::nccl_graph_test
