// The options of stage 3: small parameters that stay whole, and ZeRO++'s int8 blocks for weights
// (qwZ) and gradients (qgZ).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_zeropp_test {
namespace {

using testing::Chain;
using testing::ChainNumbers;
using testing::ChainWay;
using testing::ExpectSameNumbers;
using ::testing::HasSubstr;
using testing::kLimits;
using testing::MakeChainJob;
using testing::RankContext;
using testing::Tokens;

const std::string kZero = "zero_optimization.";
const std::string kWeights = kZero + "zero_quantized_weights=true";
const std::string kGradients = kZero + "zero_quantized_gradients=true";

std::string Threshold(int64_t elements) {
  return absl::StrCat(kZero, "stage3_param_persistence_threshold=", elements);
}

ChainWay With(ChainWay way, const std::vector<std::string>& more) {
  way.more.insert(way.more.end(), more.begin(), more.end());
  return way;
}

// Relative to the exact run; a loss falls by a twentieth in these steps.
void ExpectNear(const std::vector<double>& numbers, const std::vector<double>& exact,
                double tolerance) {
  EXPECT_NE(numbers, exact);
  ASSERT_EQ(numbers.size(), exact.size());
  for (size_t i = 0; i + 1 < exact.size(); ++i) {
    const bool is_norm = i < 6 ? i % 2 == 1 : i % 2 == 0;  // The evaluation is number 6.
    if (i == 6 || !is_norm) {
      EXPECT_NEAR(numbers[i], exact[i], tolerance * std::abs(exact[i])) << "number " << i;
    }
  }
}

TEST(PersistentParametersTest, ChangeNoNumberWhateverTheThreshold) {
  for (const int size : {1, 2, 3}) {
    std::vector<ChainWay> ways = {{.stage = 0}};
    for (const int64_t threshold : {64, 4096, 100000}) {
      const ChainWay way{.more = {kLimits[0], kLimits[0] + 3}};
      ways.push_back(With(way, {Threshold(threshold)}));
    }
    const std::string some = kZero + "stage3_model_persistence_threshold=9000";
    ways.push_back({.more = {Threshold(100000), some}});
    ExpectSameNumbers(size, ways);
  }
  for (const char* const precision : {"bf16.enabled=true", "fp16.enabled=true"}) {
    ExpectSameNumbers(2,
                      {{.stage = 2, .more = {precision}}, {.more = {precision, Threshold(4096)}}});
  }
}

// Collectives of one step in the second and later passes, and what the engine holds of weights.
struct StepCost {
  uint64_t collectives = 0;
  int64_t live_bytes = 0;
};

absl::StatusOr<StepCost> CostOf(RankContext& context, const std::vector<std::string>& more) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {.more = more}));
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  Tokens source{.rank = context.rank, .size = context.size};
  StepCost cost;
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = job->group().sequence();
    DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
    cost.collectives = job->group().sequence() - before;
  }
  cost.live_bytes = engine->state().live->bytes();
  // Read by no operation, as between steps nothing else may be: they are whole all the time.
  const float first = model.biases[3].const_data_ptr<float>()[0];
  float lent = 0;
  DT_RETURN_IF_ERROR(engine->WithParameters([&] { lent = model.biases[3][0].item<float>(); }));
  return first == lent ? absl::StatusOr<StepCost>(cost)
                       : absl::InternalError("a small parameter is not of the last update");
}

TEST(PersistentParametersTest, AreReadWithoutAnyGatherAndBroughtUpToDateByOneCollectiveAStep) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    // Two jobs in one store would meet each other's keys, so everything is one case: all persist.
    DT_ASSIGN_OR_RETURN(const StepCost all, CostOf(context, {Threshold(100000)}));
    Chain model;
    int64_t elements = 0;
    for (const at::Tensor& parameter : model.parameters()) {
      elements += (parameter.numel() + 31) / 32 * 32;
    }
    // Reduce-scatters of the buckets (of 8,192 elements), the norm, the agreement, the refresh.
    const auto buckets = static_cast<uint64_t>((elements + 8191) / 8192);
    if (all.collectives != buckets + 3) {
      return absl::InternalError(
          absl::StrCat(all.collectives, " collectives a step with ", buckets, " buckets"));
    }
    return all.live_bytes == elements * 4
               ? absl::OkStatus()
               : absl::InternalError(
                     absl::StrCat(all.live_bytes, " bytes of weights in place of ", elements * 4));
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(QuantizedWeightsTest, EndNearTheExactRunWithTheSameBitsWhateverTheLimits) {
  for (const int size : {1, 2, 3}) {
    std::vector<ChainWay> ways = {{.more = {kWeights}}};
    for (const auto& limits : kLimits) {
      ways.push_back(With({.more = {limits, limits + 3}}, {kWeights}));
    }
    // Weights that were lent are exact, and not what the next step computes with.
    ways.push_back({.more = {kWeights}, .lends = true});
    ExpectNear(ExpectSameNumbers(size, ways), ChainNumbers(size, {}), 0.01);
  }
}

TEST(QuantizedWeightsTest, GiveTheSameBitsWithASecondShardingOverSeveralMicroBatchesAndInBf16) {
  for (const std::string precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
    const ChainWay way{.accumulation = 3, .more = {kWeights, precision}};
    std::vector<ChainWay> ways = {way};
    for (const int size : {2, 4}) {
      ways.push_back(With(way, {absl::StrCat(kZero, "zero_hpz_partition_size=", size)}));
      ways.push_back(With(ways.back(), {kLimits[0], kLimits[0] + 3}));
    }
    ExpectSameNumbers(4, ways);
  }
}

TEST(QuantizedWeightsTest, AreRoundedForOperationsAndExactForWhatIsLent) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  auto job = MakeChainJob(nullptr, folder.path(), {.more = {kWeights, Threshold(64)}});
  ASSERT_TRUE(job.ok()) << job.status();
  Chain model;
  const at::Tensor weight = model.weights[2].detach().clone();
  const at::Tensor bias = (model.biases[2].detach() + 0.123F).clone();
  {
    const at::NoGradGuard no_grad;
    model.biases[2].copy_(bias);
  }
  auto engine = Engine::Create(**job, model);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const at::NoGradGuard no_grad;
  for (int round = 0; round < 2; ++round) {
    const at::Tensor read = model.weights[2] + 0;
    EXPECT_FALSE(read.equal(weight));
    EXPECT_TRUE(at::allclose(read, weight, 0, weight.abs().max().item<double>() / 127));
    EXPECT_TRUE((model.biases[2] + 0).equal(bias)) << "small parameters are never rounded";
    ASSERT_TRUE((*engine)
                    ->WithParameters([&] {
                      EXPECT_TRUE((model.weights[2] + 0).equal(weight));
                      EXPECT_EQ(std::memcmp(model.weights[2].const_data_ptr(),
                                            weight.const_data_ptr(), weight.nbytes()),
                                0);
                    })
                    .ok());
  }
}

TEST(QuantizedGradientsTest, EndNearTheExactRunWithTheSameBitsAtBothStagesAndAnyBucketSize) {
  for (const int size : {2, 3}) {
    const std::vector<double> plain = ExpectSameNumbers(
        size, {{.stage = 2, .more = {kGradients}},
               {.stage = 2, .more = {kGradients}},  // On repeat.
               {.more = {kGradients}},
               {.stage = 2, .more = {kGradients, kZero + "reduce_bucket_size=5e8"}},
               {.more = {kGradients, "comm.transport=tcp"}}});
    ExpectNear(plain, ChainNumbers(size, ChainWay{.stage = 2}), 0.01);
  }
}

TEST(QuantizedGradientsTest, AddUpOverMicroBatches) {
  const ChainWay way{.accumulation = 3};
  const std::vector<double> plain = ExpectSameNumbers(
      2, {With(way, {kGradients}), {.stage = 2, .accumulation = 3, .more = {kGradients}}});
  ExpectNear(plain, ChainNumbers(2, way), 0.01);
}

TEST(QuantizedGradientsTest, OfOneRankAreExact) {
  ExpectSameNumbers(1, {{}, {.more = {kGradients}}});
}

TEST(CommunicationDataTypeTest, RoundsAlikeAtEveryStage) {
  for (const char* const type : {"bf16", "fp16"}) {
    const std::string wire = absl::StrCat("communication_data_type=", type);
    std::vector<ChainWay> ways;
    for (const int stage : {0, 1, 2, 3}) {
      ways.push_back({.stage = stage, .more = {wire}});
    }
    ExpectNear(ExpectSameNumbers(2, ways), ChainNumbers(2, ChainWay{.stage = 0}), 0.01);
  }
}

// PowerSGD keeps so little of these small matrices that a short run leaves the exact one: what it
// must equal is stage 0's, whose buckets, and so whose small rest, are cut elsewhere.
TEST(CompressionTest, OfStageOneEndsNearItsReferenceWithTheSameBitsOnRepeat) {
  for (const char* const type : {"int8", "powersgd"}) {
    for (const int size : {2, 3}) {
      const ChainWay way{
          .stage = 1,
          .accumulation = 3,
          .more = {absl::StrCat("comm.compression.type=", type), "comm.compression.start_step=2",
                   "comm.compression.min_elements=0"}};
      ChainWay reference = way;
      reference.stage = 0;
      if (absl::string_view(type) == "int8") {
        reference.more.clear();
      }
      ExpectNear(ExpectSameNumbers(size, {way, way}), ChainNumbers(size, reference), 0.05);
    }
  }
}

TEST(ZeroPlusPlusTest, AllThreeTogetherEndNearTheExactRun) {
  const ChainWay way{.accumulation = 3};
  const std::string second = kZero + "zero_hpz_partition_size=2";
  const std::vector<double> plain = ExpectSameNumbers(
      4, {With(way, {kWeights, kGradients, second}), With(way, {kWeights, kGradients})});
  ExpectNear(plain, ChainNumbers(4, way), 0.01);
}

TEST(QuantizedGradientsTest, AnOverflowOnOneRankSkipsTheStepOnAllAndIsNamed) {
  const auto results = testing::RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {.more = {kGradients}}));
    Chain model;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
    Tokens source{.rank = context.rank, .size = context.size};
    for (int step = 0; step < 3; ++step) {
      DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, [&](const at::Tensor& tokens) {
        const at::Tensor loss = model.Loss(tokens);
        const bool bad = step == 1 && context.rank == 1;
        return Loss(bad ? loss * std::numeric_limits<float>::infinity() : loss, tokens.size(0));
      }));
      const double loss = report.loss;
      if (report.skipped != (step == 1) || (step == 2 && !std::isfinite(loss))) {
        return absl::InternalError(absl::StrCat("step ", step, ": loss ", loss));
      }
    }
    return absl::OkStatus();
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::engine_zeropp_test
