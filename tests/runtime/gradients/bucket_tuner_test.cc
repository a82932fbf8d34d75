// The size of gradient buckets, found in a run's first steps: agreed on, bounded, and without a
// trace in a deterministic run's numbers.
#include "runtime/gradients/bucket_tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/plan/layout_of.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::bucket_tuner_test {
namespace {

using testing::RankContext;

constexpr int kLayers = 16;
constexpr int64_t kElements = 1 << 16;
constexpr size_t kPresent = 2;  // Buckets when each may hold everything: the first is small.

// Layers become ready evenly over 100 ms; this rank is `lag` later. A reduction of all elements
// takes `link_s`, whatever the buckets.
BucketSample SampleOf(double lag, double link_s, double reduced_s) {
  BucketSample sample;
  for (int i = 0; i < kLayers; ++i) {
    sample.ready_s.push_back(lag + 0.1 * (i + 1) / kLayers);
  }
  sample.backward_s = lag + 0.1;
  sample.reduced_s = lag + reduced_s;
  sample.reductions = {{kElements, link_s / kLayers},
                       {(kLayers - 1) * kElements, link_s * (kLayers - 1) / kLayers}};
  return sample;
}

// How many buckets each step had, the last number being final, if other buckets take `other_s` and
// the present ones, the first four layers and the rest, `present_s`.
absl::StatusOr<std::vector<size_t>> CountsOf(RankContext& context, double present_s,
                                             double other_s) {
  DT_ASSIGN_OR_RETURN(auto group, comm::CreateHostGroup(context.store, context.group_options()));
  const plan::ParamLayout layout =
      plan::LayoutOf(std::vector<int64_t>(static_cast<size_t>(kLayers), kElements));
  std::vector<int> order(static_cast<size_t>(kLayers));
  std::iota(order.begin(), order.end(), 0);
  BucketTuner tuner(*group, plan::BoundsOfTuning(kLayers * kElements, kLayers * kElements));
  std::vector<size_t> counts = {kPresent};
  while (!tuner.done() && counts.size() < 20) {
    const double reduced = counts.back() == kPresent ? present_s : other_s;
    DT_ASSIGN_OR_RETURN(
        const plan::BucketOptions cut,
        tuner.AfterStep(SampleOf(0.001 * context.rank, 0.09, reduced), layout, order));
    DT_ASSIGN_OR_RETURN(const auto plan, plan::BucketPlan::Create(layout, cut, order));
    counts.push_back(plan.buckets().size());
  }
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  return counts;
}

TEST(BucketTunerTest, TriesTheBestCutAndKeepsWhatWasFaster) {
  for (const bool better : {true, false}) {
    const auto results = testing::RunRanks({.size = 3}, [&](RankContext& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const std::vector<size_t> counts,
                          CountsOf(context, 0.19, better ? 0.11 : 0.2));
      // Three steps of the present buckets, one that does not count, three of the others.
      if (counts.size() != 8 || counts[3] <= kPresent || counts[6] != counts[3] ||
          counts[7] != (better ? counts[3] : kPresent)) {
        return absl::InternalError(absl::StrJoin(counts, " "));
      }
      return absl::OkStatus();
    });
    for (const auto& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

// Each rank measures other times; all must cut alike, or the next reduction would not match.
TEST(BucketTunerTest, RanksThatMeasureDifferentlyAgree) {
  auto cluster = testing::Cluster::Start({.size = 4}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const std::vector<size_t> counts,
                        CountsOf(context, 0.19 + 0.01 * context.rank, 0.11 + 0.03 * context.rank));
    return context.store->Set(absl::StrCat("counts/", context.rank), absl::StrJoin(counts, " "),
                              Deadline::After(absl::Seconds(10)));
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  std::set<std::string> all;
  for (int rank = 0; rank < 4; ++rank) {
    const auto counts = (*cluster)->Result(absl::StrCat("counts/", rank));
    ASSERT_TRUE(counts.ok()) << counts.status();
    all.insert(*counts);
  }
  EXPECT_EQ(all.size(), 1U) << absl::StrJoin(all, "\n");
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

class Layers : public torch::nn::Module {
 public:
  Layers() {
    for (int i = 0; i < 6; ++i) {
      weights.push_back(register_parameter(absl::StrCat("w", i), at::randn({64, 64}) * 0.1));
    }
  }
  at::Tensor Loss(at::Tensor x) {
    for (const at::Tensor& weight : weights) {
      x = at::tanh(x.matmul(weight));
    }
    return x.square().sum();
  }
  std::vector<at::Tensor> weights;
};

// Twelve deterministic steps over TCP; the bits of losses and weights, and how many buckets steps
// had.
absl::StatusOr<std::string> TrainOverTcp(RankContext& context, const std::string& tuning,
                                         int64_t bucket) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeTestJob(
          {.run_dir = folder.path(),
           .overrides = {"train_micro_batch_size_per_gpu=1", "deterministic=true",
                         "comm.transport=tcp", absl::StrCat("comm.bucket_tuning=", tuning),
                         absl::StrCat("zero_optimization.reduce_bucket_size=", bucket)},
           .rank = &context,
           .group = absl::StrCat("tuning-", tuning, bucket)}));
  at::manual_seed(3);
  Layers net;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  struct Source {
    int rank = 0;
    int64_t call = 0;
    absl::StatusOr<at::Tensor> Next() {
      return at::ones({4, 64}) * (0.1 + rank + 0.01 * static_cast<double>(call++));
    }
  } source{.rank = context.rank};
  std::string bits;
  for (int step = 0; step < 12; ++step) {
    DT_ASSIGN_OR_RETURN(const StepReport report, engine->Step(source, [&](const at::Tensor& x) {
      return Loss(net.Loss(x), x.size(0));
    }));
    absl::StrAppendFormat(&bits, "%a %a\n", report.loss, report.grad_norm);
  }
  for (const at::Tensor& weight : net.weights) {
    absl::StrAppendFormat(&bits, "%a\n", weight.to(at::kDouble).sum().item<double>());
  }
  DT_ASSIGN_OR_RETURN(const Json record, ParseJson(job->group().FlightRecord(), "record"));
  bool measured = false;
  for (const Json& entry : record["entries"]) {
    measured = measured || entry["dtrain"]["name"] == "times of buckets";
  }
  if (measured != (tuning == "on")) {
    return absl::InternalError(absl::StrCat("tuning ", tuning, " measured ", measured));
  }
  return bits;
}

TEST(BucketTuningTest, ADeterministicRunHasTheSameBitsWhateverIsTunedAndMeasured) {
  const auto results = testing::RunRanks({.size = 3}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const std::string fixed, TrainOverTcp(context, "off", 1 << 20));
    for (const int64_t bucket : {int64_t{5000}, int64_t{20000}, int64_t{1} << 20}) {
      DT_ASSIGN_OR_RETURN(const std::string tuned, TrainOverTcp(context, "on", bucket));
      if (tuned != fixed) {
        return absl::InternalError(
            absl::StrCat("buckets of ", bucket, ":\n", tuned, "not\n", fixed));
      }
    }
    return absl::OkStatus();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::bucket_tuner_test
