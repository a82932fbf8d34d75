// Frozen weights at ZeRO stage 3 as an engine takes them: the same on every rank, none of them
// touched by what is refused, and with room beside the weights that train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/adapted_for_tests.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_frozen_create_test {
namespace {

using testing::Adapted;
using testing::ChainWay;
using ::testing::HasSubstr;
using testing::MakeChainJob;
using testing::RankContext;
using testing::Tokens;

// Gathers of weights that this rank's record names for a step.
int64_t GathersOf(Job& job, int64_t step) {
  int64_t gathers = 0;
  const auto record = ParseJson(job.group().FlightRecord(), "flight record");
  for (const Json& entry : record->at("entries")) {
    const Json& call = entry.at("dtrain");
    const bool weights = absl::StartsWith(call.at("name").get<std::string>(), "weights of bucket");
    gathers += weights && call.at("step") == step ? 1 : 0;
  }
  return gathers;
}

// Both kinds are padded to whole norm blocks of all ranks, and the padding is gathered with them.
absl::Status GathersEachBucketOnce(RankContext& context, bool few_are_frozen) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {}));
  Adapted model;
  for (const auto& layer : model.layers) {
    layer->base.requires_grad_(few_are_frozen);
  }
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  const EngineState& state = engine->state();
  const int64_t training = state.flat->layout().total_elements();
  const int64_t frozen = state.frozen->flat->layout().total_elements();
  if ((frozen < training) != few_are_frozen || frozen % 8192 == 0 || training % 8192 == 0) {
    return absl::InternalError(absl::StrCat("a model for another test: ", training, ", ", frozen));
  }
  Tokens source{.rank = context.rank, .size = context.size};
  for (int i = 0; i < 3; ++i) {
    DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
  }
  // Frozen weights stay gathered from step to step.
  const auto changed = static_cast<int64_t>(state.shards->buckets().size());
  const auto all = changed + static_cast<int64_t>(state.frozen->shards->buckets().size());
  const std::vector<int64_t> expected = {all, changed, changed};
  for (int64_t step = 1; step <= 3; ++step) {
    const int64_t gathers = GathersOf(*job, step);
    if (gathers != expected[static_cast<size_t>(step - 1)]) {
      return absl::InternalError(absl::StrCat(gathers, " gathers in step ", step, " of ", changed,
                                              " buckets that train and ", all - changed,
                                              " frozen ones"));
    }
  }
  return absl::OkStatus();
}

TEST(EngineFrozenCreateTest, WhereAllMayBeLiveEveryBucketIsGatheredOnceAStep) {
  for (const bool few_are_frozen : {false, true}) {
    const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) {
      return GathersEachBucketOnce(context, few_are_frozen);
    });
    for (const auto& result : results) {
      EXPECT_TRUE(result.status.ok()) << result.status << ", few frozen: " << few_are_frozen;
    }
  }
}

TEST(EngineFrozenCreateTest, WhatIsRefusedLeavesTheModuleAsItWas) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  const ChainWay way{.more = {R"(optimizer={"param_groups":[{"params":"*.base","lr":0.1}]})"}};
  auto job = *MakeChainJob(nullptr, folder.path(), way);
  Adapted model;
  std::vector<at::Tensor> values;
  std::vector<const void*> places;
  for (const at::Tensor& parameter : model.parameters()) {
    values.push_back(parameter.detach().clone());
    places.push_back(parameter.const_data_ptr());
  }
  const absl::Status refused = Engine::Create(*job, model).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("names no trainable parameter"));
  const std::vector<at::Tensor> parameters = model.parameters();
  ASSERT_EQ(parameters.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    // Memory that was shared out and given back cannot be read.
    ASSERT_EQ(parameters[i].const_data_ptr(), places[i]) << i;
    EXPECT_TRUE(at::equal(parameters[i], values[i])) << i;
  }
}

// The message that both ranks get when rank 1 has changed its model.
std::string Refusal(const std::vector<std::string>& more,
                    const std::function<void(Adapted&)>& change) {
  std::string message;
  const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, MakeChainJob(&context, folder.path(), {.more = more}));
    Adapted model;
    if (context.rank == 1) {
      change(model);
    }
    return Engine::Create(*job, model).status();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_EQ(result.status.message().find('\n'), std::string::npos);
    EXPECT_EQ(result.status.message(), results.front().status.message());
    message = std::string(result.status.message());
  }
  return message;
}

TEST(EngineFrozenCreateTest, ATypeThatDiffersBetweenRanksIsNamed) {
  const auto halve = [](at::Tensor weight) { weight.set_data(weight.detach().to(at::kBFloat16)); };
  EXPECT_THAT(Refusal({"bf16.enabled=true"}, [&](Adapted& model) { halve(model.layers[1]->base); }),
              HasSubstr("rank 0 has frozen fp32 [96, 96] layer1.base, rank 1 has frozen bf16 [96, "
                        "96] layer1.base"));
  EXPECT_THAT(
      Refusal({"bf16.enabled=true"}, [&](Adapted& model) { halve(model.layers[2]->down); }),
      HasSubstr("rank 0 has fp32 [8, 96] layer2.down, rank 1 has bf16 [8, 96] layer2.down"));
  // In fp32 rank 0 would share it out and rank 1 would not.
  EXPECT_THAT(Refusal({}, [&](Adapted& model) { halve(model.table); }),
              HasSubstr("rank 1 has frozen, whole on every rank: bf16 [101, 96] table"));
}

}  // namespace
}  // namespace dtrain::engine_frozen_create_test
