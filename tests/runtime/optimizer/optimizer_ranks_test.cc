// Several ranks, each a process: every optimizer gives the same bits at every ZeRO stage and in
// every tier of memory. The ranks of one size make all of these trainings, one after the other:
// starting them for each would take most of the time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/stable_hash.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/optimizer_net.h"

namespace dtrain::optimizer_ranks_test {
namespace {

using testing::Halves;
using Net = testing::OptimizerNet;
using testing::RankContext;

struct Case {
  const char* name;
  std::vector<std::string> overrides;
  bool own = false;
};

std::vector<Case> Cases() {
  return {
      {"AdamW", {R"(optimizer={"params":{"lr":0.01,"weight_decay":0.1}})"}},
      {"AdamL2",
       {R"(optimizer={"type":"Adam","params":{"adam_w_mode":false,"weight_decay":0.1}})"}},
      {"Sgd", {R"(optimizer={"type":"SGD","params":{"lr":0.01,"momentum":0.9,"nesterov":true}})"}},
      {"Lion", {R"(optimizer={"type":"Lion","params":{"lr":0.001,"weight_decay":0.1}})"}},
      {"Adagrad", {R"(optimizer={"type":"Adagrad"})"}},
      {"Lamb", {R"(optimizer={"type":"Lamb","params":{"lr":0.01,"weight_decay":0.1}})"}},
      {"LambFp16", {R"(optimizer={"type":"Lamb"})", "fp16.enabled=true"}},
      {"Muon", {R"(optimizer={"type":"Muon","params":{"weight_decay":0.1}})"}},
      {"MuonBf16", {R"(optimizer={"type":"Muon"})", "bf16.enabled=true"}},
      {"MuonFp16", {R"(optimizer={"type":"Muon"})", "fp16.enabled=true"}},
      {"Bf16States",
       {R"(optimizer={"params":{"betas":[0.9,0.95]},"param_groups":[{"params":"gain","lr":0.1}]})",
        "bf16.enabled=true", "bf16.bf16_optimizer_states=true"}},
      {"StochasticStates",
       {R"(optimizer={"params":{"betas":[0.9,0.999]},"param_groups":[{"params":"gain","lr":0.1}]})",
        "bf16.enabled=true", "bf16.bf16_optimizer_states=true", "bf16.stochastic_rounding=true"}},
      {"Limited", {"gradient_clipping_value=0.01", "prescale_gradients=true"}},
      {"Own", {}, true},
  };
}

struct Way {
  std::string name;
  std::vector<std::string> overrides;
};

Way StageWay(int stage) {
  return {absl::StrCat("stage ", stage), {absl::StrCat("zero_optimization.stage=", stage)}};
}

Way OffloadWay(const char* device, double ratio, int stage) {
  const std::string section = "zero_optimization.offload_optimizer.";
  return {
      absl::StrCat("stage ", stage, " with ", device, " at ratio ", ratio),
      {absl::StrCat("zero_optimization.stage=", stage), absl::StrCat(section, "device=", device),
       section + "nvme_path=/tmp", absl::StrCat(section, "ratio=", ratio)}};
}

// Every stage at two sizes or three, every tier on two ranks; stage 0, which all must equal, first.
std::vector<Way> Ways(int size) {
  switch (size) {
    case 1:
      return {StageWay(0), StageWay(3)};
    case 2:
      return {StageWay(0),
              StageWay(1),
              StageWay(2),
              OffloadWay("cpu", 1, 1),
              OffloadWay("nvme", 1, 3),
              OffloadWay("cpu", 0.5, 3),
              OffloadWay("nvme", 0.5, 2),
              OffloadWay("nvme", 0, 1)};
    default:
      return {StageWay(0), StageWay(2), StageWay(3)};
  }
}

// Four steps of 12 rows each; a hash of every weight.
absl::StatusOr<uint64_t> Train(RankContext& context, const Case& test, const Way& way,
                               const std::string& group) {
  const testing::TempFolder folder;
  std::vector<std::string> overrides = {"train_micro_batch_size_per_gpu=1", "deterministic=true",
                                        "zero_optimization.reduce_bucket_size=9000"};
  overrides.insert(overrides.end(), test.overrides.begin(), test.overrides.end());
  overrides.insert(overrides.end(), way.overrides.begin(), way.overrides.end());
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeTestJob(
          {.run_dir = folder.path(), .overrides = overrides, .rank = &context, .group = group}));
  at::manual_seed(5);
  Net net;
  EngineOptions options;
  if (test.own) {
    options.optimizer = std::make_shared<Halves>();
  }
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
  struct Source {
    int rank, size;
    int step = 0;
    absl::StatusOr<at::Tensor> Next() {
      const at::Tensor all =
          at::sin(at::arange(0, 84, at::kFloat).reshape({12, 7}) + static_cast<double>(++step));
      return all.narrow(0, rank * 12 / size, 12 / size).contiguous();
    }
  } source{context.rank, context.size};
  for (int i = 0; i < 4; ++i) {
    DT_RETURN_IF_ERROR(
        engine->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
            .status());
  }
  plan::StableHash hash;
  bool finite = true;
  DT_RETURN_IF_ERROR(engine->WithParameters([&] {
    for (const at::Tensor& parameter : net.parameters()) {
      const at::Tensor values = parameter.detach().clone();
      finite = finite && values.isfinite().all().item<bool>();
      hash.Add(
          absl::string_view(static_cast<const char*>(values.const_data_ptr()), values.nbytes()));
    }
  }));
  return finite ? absl::StatusOr<uint64_t>(hash.value())
                : absl::InternalError("weights are not finite");
}

// Takes every training and publishes its outcome on this rank: the hash of its weights, or why
// there is none.
absl::Status TrainAll(RankContext& context) {
  at::set_num_threads(1);
  Json hashes = Json::object();
  int trainings = 0;
  for (const Case& test : Cases()) {
    for (const Way& way : Ways(context.size)) {
      const auto hash = Train(context, test, way, absl::StrCat("training-", ++trainings));
      hashes[test.name][way.name] = hash.ok() ? absl::StrCat(*hash) : hash.status().ToString();
    }
  }
  return context.store->Set(absl::StrCat("hashes/", context.rank), DumpJson(hashes),
                            Deadline::After(absl::Seconds(10)));
}

// The outcomes of each rank: {case: {way: hash}}.
std::vector<Json> TrainOn(int size) {
  constexpr absl::Duration kBound = absl::Seconds(250);
  auto cluster = testing::Cluster::Start({.size = size, .time_bound = kBound}, TrainAll);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  std::vector<Json> hashes;
  for (int rank = 0; rank < size; ++rank) {
    const auto text = (*cluster)->Result(absl::StrCat("hashes/", rank));
    EXPECT_TRUE(text.ok()) << text.status();
    hashes.push_back(ParseJson(text.value_or("{}"), "hashes").value_or(Json::object()));
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return hashes;
}

// Made for the first test that asks, of all cases.
const std::vector<Json>& HashesOn(int size) {
  static auto* const made = new std::map<int, std::vector<Json>>;
  const auto found = made->find(size);
  return found != made->end() ? found->second : made->emplace(size, TrainOn(size)).first->second;
}

// Every rank and every way has the weights of stage 0 on rank 0.
class OptimizerRanksTest : public ::testing::TestWithParam<std::tuple<Case, int>> {};

INSTANTIATE_TEST_SUITE_P(All, OptimizerRanksTest,
                         ::testing::Combine(::testing::ValuesIn(Cases()),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& with) {
                           return absl::StrCat(std::get<0>(with.param).name, "On",
                                               std::get<1>(with.param));
                         });

TEST_P(OptimizerRanksTest, StagesAndTiersGiveTheSameBits) {
  const auto& [test, size] = GetParam();
  const std::vector<Json>& hashes = HashesOn(size);
  ASSERT_EQ(hashes.size(), static_cast<size_t>(size));
  const std::vector<Way> ways = Ways(size);
  const auto hash_of = [&, name = test.name](size_t rank, const Way& way) {
    return hashes[rank].value(name, Json::object()).value(way.name, std::string("nothing"));
  };
  const std::string whole = hash_of(0, ways.front());
  EXPECT_THAT(whole, ::testing::ContainsRegex("^[0-9]+$"));
  for (const Way& way : ways) {
    for (size_t rank = 0; rank < hashes.size(); ++rank) {
      EXPECT_EQ(hash_of(rank, way), whole) << way.name << ", rank " << rank << " of " << size;
    }
  }
}

}  // namespace
}  // namespace dtrain::optimizer_ranks_test
