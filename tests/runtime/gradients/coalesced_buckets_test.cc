// Several buckets of a sharded gradient are reduced in one call. The tests look at which, and at
// what that saves NCCL: for the plan of a model of 3e9 parameters, and in steps over the fakes.
#include "runtime/plan/layout/coalesced_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/layout/launch_queue.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::coalesced_buckets_test {
namespace {

using ::testing::ElementsAre;
using testing::RankContext;
using testing::Way;

// The number of calls in which buckets with these ends are reduced.
int64_t CallsOf(const std::vector<uint8_t>& ends) {
  return std::count(ends.begin(), ends.end(), uint8_t{1});
}

TEST(CoalescedBuckets, ThoseThatOneGradientFillsGoTogether) {
  // Entry 1 lies in buckets 1 to 3, of which the last has the begin of entry 2 as well.
  const std::vector<plan::BucketSpan> spans = {{0, 1}, {1, 4}, {3, 6}};
  EXPECT_THAT(plan::EndsOfCoalesced(spans, {0, 1, 2, 3, 4, 5}), ElementsAre(1, 0, 1, 0, 0, 1));
  // Behind bucket 3 both entries are there, wherever it stands.
  EXPECT_THAT(plan::EndsOfCoalesced(spans, {3, 4, 1, 2, 0, 5}), ElementsAre(0, 0, 1, 0, 0, 1));
}

TEST(CoalescedBuckets, ABucketOfPaddingGoesWithAnyAndNoMoreThanSomeGoTogether) {
  EXPECT_THAT(plan::EndsOfCoalesced({{0, 1}}, {0, 1}), ElementsAre(0, 1));
  EXPECT_THAT(plan::EndsOfCoalesced({}, {}), ElementsAre());
  std::vector<int> order(2 * plan::kCoalescedBucketsMax + 1);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_EQ(CallsOf(plan::EndsOfCoalesced({{0, static_cast<int>(order.size())}}, order)), 3);
}

// A bucket that goes with the next one is launched with it, whichever is ready first on a rank.
TEST(CoalescedBuckets, NoBucketWaitsForTheOthers) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SplitMix64 random(seed);
    const auto shuffled = [&](int count) {
      std::vector<int> all(static_cast<size_t>(count));
      std::iota(all.begin(), all.end(), 0);
      for (size_t i = all.size(); i > 1; --i) {
        std::swap(all[i - 1], all[random.Below(i)]);
      }
      return all;
    };
    std::vector<plan::BucketSpan> spans;
    int buckets = 0;  // Entries follow one another, and may share the bucket of the border.
    for (int entry = 0; entry < 12; ++entry) {
      const int first = std::max(0, buckets - static_cast<int>(random.Below(2)));
      buckets = first + 1 + static_cast<int>(random.Below(5));
      spans.push_back({first, buckets});
    }
    const std::vector<int> order = shuffled(buckets);
    const std::vector<uint8_t> ends = plan::EndsOfCoalesced(spans, order);
    plan::LaunchQueue queue(spans, order);
    const bool units = seed % 2 == 1;
    if (units) {
      queue.UseUnits({{0, 1, 2}, {5, 6}});
    }
    queue.Arm();
    int last = -1;
    size_t launched = 0;
    const auto launch = [&](int bucket) {
      last = bucket;
      ++launched;
    };
    for (const int entry : shuffled(12)) {
      queue.Ready(static_cast<size_t>(entry), launch);
      ASSERT_TRUE(last < 0 || ends[static_cast<size_t>(last)] == 1) << "seed " << seed;
    }
    for (size_t unit = 0; units && unit < 2; ++unit) {
      queue.EndUnit(unit, launch);
      ASSERT_TRUE(last < 0 || ends[static_cast<size_t>(last)] == 1) << "seed " << seed;
    }
    EXPECT_EQ(launched, order.size()) << "seed " << seed;
  }
}

// Qwen2.5 3B: its large matrices have 22.5e6 elements and its embedding 311e6.
TEST(CoalescedBuckets, AModelOfThreeBillionParametersTakesAThirdOfTheCalls) {
  constexpr int64_t kHidden = 2048, kInner = 11008, kKeys = 256, kWords = 151936;
  std::vector<plan::ParamSpec> parameters = {{"embed", {kWords, kHidden}}};
  for (int layer = 0; layer < 36; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      parameters.push_back({absl::StrCat(layer, ".", name), std::move(shape)});
    };
    add("norm1", {kHidden});
    add("q", {kHidden, kHidden});
    add("q_bias", {kHidden});
    add("k", {kKeys, kHidden});
    add("k_bias", {kKeys});
    add("v", {kKeys, kHidden});
    add("v_bias", {kKeys});
    add("o", {kHidden, kHidden});
    add("norm2", {kHidden});
    add("gate", {kInner, kHidden});
    add("up", {kInner, kHidden});
    add("down", {kHidden, kInner});
  }
  parameters.push_back({"norm", {kHidden}});
  const auto layout = plan::ParamLayout::Create(parameters);
  ASSERT_TRUE(layout.ok()) << layout.status();
  struct Case {
    int64_t bucket_elements, buckets, calls;
  };
  // The default; "auto", the square of the hidden size; and larger ones.
  for (const Case& expected :
       {Case{6'553'600, 472, 166}, Case{kHidden * kHidden, 737, 199}, Case{25'000'000, 125, 113}}) {
    const auto shards = plan::ShardPlan::Create(
        *layout, {.buckets = {.bucket_elements = expected.bucket_elements}, .world_size = 8});
    ASSERT_TRUE(shards.ok()) << shards.status();
    const auto order = shards->LaunchOrder({});
    ASSERT_TRUE(order.ok()) << order.status();
    EXPECT_EQ(order->size(), static_cast<size_t>(expected.buckets));
    EXPECT_EQ(CallsOf(plan::EndsOfCoalesced(shards->spans(), *order)), expected.calls);
  }
  // Stage 0 has nothing to gain: no bucket cuts a tensor.
  const auto whole = plan::BucketPlan::Create(*layout, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->buckets().size(), 182U);
}

// The reduce-scatters of a rank's last step, and the calls of NCCL for them.
struct Taken {
  int64_t reductions = 0;
  int64_t calls = 0;
};

absl::StatusOr<Taken> LastStep(RankContext& context, const Way& way, comm::FakeFabric* fabric) {
  at::set_num_threads(1);
  testing::FakeGpu gpu(fabric);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeJob(&context, folder.path(), way, &gpu));
  testing::Net net(/*segments=*/false, way.width);
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, {}));
  testing::Source source{context.rank, context.size, way.accumulation};
  Taken taken;
  for (int step = 0; step < way.steps; ++step) {
    const size_t before = gpu.nccl.calls().size();
    const int jobs = gpu.nccl.jobs();
    DT_RETURN_IF_ERROR(
        engine->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
            .status());
    const std::vector<std::string> calls = gpu.nccl.calls();
    const auto count = [&](const char* name) {
      return std::count(calls.begin() + static_cast<std::ptrdiff_t>(before), calls.end(), name);
    };
    const int64_t others = count("AllGather") + count("AllReduce") + count("Broadcast");
    taken = {count("ReduceScatter"), gpu.nccl.jobs() - jobs - others};
  }
  const auto buckets = static_cast<int64_t>(engine->state().shards->buckets().size());
  if (taken.reductions % buckets != 0 || taken.reductions == 0 || buckets < 9) {
    return absl::InternalError(
        absl::StrCat(taken.reductions, " reductions of ", buckets, " buckets"));
  }
  engine.reset();
  job.reset();
  const auto wrong = gpu.nccl.violations();
  return wrong.empty() ? absl::StatusOr<Taken>(taken) : absl::InternalError(wrong.front());
}

// The weights of 90 x 1,500 and 1,500 x 30 lie in about 11 buckets; there are four parameters. The
// fake hangs where ranks do not coalesce alike.
TEST(CoalescedBuckets, AStepTakesACallForEachParameterAndNotForEachBucket) {
  const std::vector<std::vector<std::string>> ways = {
      {"zero_optimization.stage=1"}, {"zero_optimization.stage=1", "cuda_graphs=true"}};
  for (const std::vector<std::string>& more : ways) {
    SCOPED_TRACE(more.back());
    Way way{.place = Way::Place::kNccl,
            .accumulation = 2,
            .steps = 5,
            .width = 1500,
            .more = {"zero_optimization.reduce_bucket_size=16384"}};
    way = With(way, more);
    comm::FakeFabric fabric;
    const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Taken taken, LastStep(context, way, &fabric));
      const int64_t most = 4 + taken.reductions / plan::kCoalescedBucketsMax;
      return taken.calls <= most
                 ? absl::OkStatus()
                 : absl::InternalError(absl::StrCat(taken.calls, " calls of NCCL for ",
                                                    taken.reductions, " buckets; allowed: ", most));
    });
    for (const auto& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

}  // namespace
}  // namespace dtrain::coalesced_buckets_test
