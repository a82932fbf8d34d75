// The creation of NCCL groups: a second role beside the first, and many ranks at several ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_roles_test {
namespace {

constexpr size_t kCount = 9001;

Buffer Filled(FakeRank& self, size_t count, float value) {
  auto* const data = static_cast<float*>(self.Allocate(count * sizeof(float)));
  std::fill(data, data + count, value);
  return {data, count * sizeof(float), DType::kFloat32, {DeviceKind::kCuda, 0}};
}

std::vector<float> Values(const Buffer& buffer) {
  const auto* const data = static_cast<const float*>(buffer.data);
  return {data, data + buffer.count()};
}

// A second role has a stream and a communicator of its own: its collectives do not queue behind
// those of the first.
TEST(NcclGroup, ARoleOfItsOwnIsNotHeldUpByTheOther) {
  RunRanks(2, [](FakeRank& self) {
    auto reductions = self.MakeGroup();
    auto gathers = reductions->Split(0, self.rank, "gathers");
    ASSERT_TRUE(gathers.ok()) << gathers.status();
    EXPECT_EQ((*gathers)->rank(), self.rank);
    EXPECT_EQ((*gathers)->size(), 2);
    const Buffer mine = Filled(self, kCount, static_cast<float>(self.rank));
    const Buffer all = Filled(self, 2 * kCount, -1);
    const Buffer gradient = Filled(self, kCount, 1);
    if (self.rank == 0) {  // Rank 1 reduces only after both have gathered.
      auto reduced = reductions->AllReduce(gradient, ReduceOp::kSum);
      ASSERT_TRUE(reduced.ok());
      auto work = (*gathers)->AllGather(mine, all);
      ASSERT_TRUE(work->Wait().ok());
      EXPECT_FALSE(reduced->Done());
      ASSERT_TRUE(self.store->Set("gathered", "", Deadline::Infinite()).ok());
      ASSERT_TRUE(reduced->Wait().ok());
    } else {
      ASSERT_TRUE((*gathers)->AllGather(mine, all)->Wait().ok());
      ASSERT_TRUE(self.store->Get("gathered", Deadline::After(absl::Seconds(30))).ok());
      ASSERT_TRUE(reductions->AllReduce(gradient, ReduceOp::kSum)->Wait().ok());
    }
    EXPECT_THAT(Values(gradient), testing::Each(2.0F));
    EXPECT_EQ(Values(all)[0], 0.0F);
    EXPECT_EQ(Values(all)[kCount], 1.0F);
    gathers->reset();
    reductions.reset();
    self.ExpectClean();
  });
}

// Two of three ranks have sent and received before: all still meet under one name in the store.
TEST(NcclGroup, RanksOfASplitFindEachOtherWhateverTheySentBefore) {
  RunRanks(3, [](FakeRank& self) {
    auto group = self.MakeGroup();
    const Deadline bound = Deadline::After(absl::Seconds(30));
    const Buffer message = Filled(self, kCount, 1);
    if (self.rank < 2) {
      const auto work = self.rank == 0 ? group->Send(message, 1) : group->Receive(message, 0);
      ASSERT_TRUE(work->Wait(bound).ok());
    }
    auto split = group->Split(0, self.rank, "split");
    ASSERT_TRUE(split.ok()) << split.status();
    if (self.rank == 0) {
      CollectiveOptions options;
      options.deadline = Deadline::After(absl::Seconds(2));
      const auto work = (*split)->AllReduce(Filled(self, kCount, 1), ReduceOp::kSum, options);
      const absl::Status status = work->Wait(bound);
      EXPECT_THAT(std::string(status.message()),
                  testing::HasSubstr("did not arrive: rank 1 (host "));
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr(", rank 2 (host "));
      ASSERT_TRUE(self.store->Set("named", "", bound).ok());
    }
    EXPECT_TRUE(self.store->Get("named", bound).ok());
    split->reset();
    group.reset();
    self.ExpectClean();
  });
}

// NCCL reads a communicator's name again when one is split off it.
TEST(NcclGroup, TheNameThatNcclKeepsOutlivesTheOptions) {
  RunRanks(2, [](FakeRank& self) {
    self.options.group.name = "a name that is too long for a short string";
    auto group = self.MakeGroup();
    std::fill(self.options.group.name.begin(), self.options.group.name.end(), 'x');
    auto split = group->Split(0, self.rank, "split");
    ASSERT_TRUE(split.ok()) << split.status();
    split->reset();
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclGroup, ARankThatGivesANegativeColourIsInNoGroup) {
  RunRanks(3, [](FakeRank& self) {
    auto group = self.MakeGroup();
    auto split = group->SplitGroup(self.store, self.rank == 1 ? -5 : 0, self.rank, "split");
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(*split == nullptr, self.rank == 1);
    if (*split != nullptr) {
      EXPECT_EQ((*split)->size(), 2);
      const Buffer buffer = Filled(self, kCount, 1);
      ASSERT_TRUE((*split)->AllReduce(buffer, ReduceOp::kSum)->Wait().ok());
      EXPECT_THAT(Values(buffer), testing::Each(2.0F));
    }
    split->reset();
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclGroup, ManyRanksMeetAtSeveralIdsWhereNcclCan) {
  for (const bool old : {false, true}) {
    RunRanks(
        3,
        [old](FakeRank& self) {
          self.options.ranks_per_id = 2;
          auto group = self.MakeGroup();
          const Buffer buffer = Filled(self, kCount, static_cast<float>(self.rank + 1));
          ASSERT_TRUE(group->AllReduce(buffer, ReduceOp::kSum)->Wait().ok());
          EXPECT_THAT(Values(buffer), testing::Each(6.0F));
          const auto calls = self.nccl.calls();
          EXPECT_EQ(std::count(calls.begin(), calls.end(), "CommInitRankScalable"), old ? 0 : 1);
          group.reset();
          self.ExpectClean();
        },
        [old](int) { return FakeNcclFaults{.no_scalable_init = old}; });
  }
}

}  // namespace
}  // namespace dtrain::comm::nccl_roles_test
