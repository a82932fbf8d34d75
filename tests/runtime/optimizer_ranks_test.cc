// Several ranks, each a process: every optimizer gives the same bits at every ZeRO stage.
#include <gtest/gtest.h>

#include <cmath>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/engine/engine_state.h"
#include "runtime/plan/stable_hash.h"
#include "tests/runtime/job_for_tests.h"
#include "tests/runtime/optimizer_net.h"

namespace dtrain {
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

// Four steps of 12 rows each; a hash of every weight.
absl::StatusOr<uint64_t> Train(RankContext& context, const Case& test, int stage) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  std::vector<std::string> overrides = {"train_micro_batch_size_per_gpu=1", "deterministic=true",
                                        "zero_optimization.reduce_bucket_size=9000",
                                        absl::StrCat("zero_optimization.stage=", stage)};
  overrides.insert(overrides.end(), test.overrides.begin(), test.overrides.end());
  DT_ASSIGN_OR_RETURN(
      auto job,
      testing::MakeTestJob({.run_dir = folder.path(), .overrides = overrides, .rank = &context}));
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

uint64_t HashOf(const Case& test, int stage, int size) {
  auto cluster = testing::Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const uint64_t hash, Train(context, test, stage));
    return context.store->Set(absl::StrCat("hash/", context.rank), absl::StrCat(hash),
                              Deadline::After(absl::Seconds(10)));
  });
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  uint64_t first = 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto text =
        (*cluster)->store().Get(absl::StrCat("hash/", rank), Deadline::After(absl::Seconds(60)));
    uint64_t hash = 0;
    EXPECT_TRUE(text.ok() && absl::SimpleAtoi(*text, &hash));
    first = rank == 0 ? hash : first;
    EXPECT_EQ(hash, first) << "rank " << rank;
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return first;
}

class OptimizerRanksTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, OptimizerRanksTest, ::testing::ValuesIn(Cases()),
                         [](const auto& with) { return std::string(with.param.name); });

TEST_P(OptimizerRanksTest, StagesGiveTheSameBits) {
  // Every stage at two sizes or three; a process group a number is what this test costs.
  const std::vector<std::pair<int, std::vector<int>>> stages = {{1, {3}}, {2, {1, 2}}, {3, {2, 3}}};
  for (const auto& [size, others] : stages) {
    const uint64_t whole = HashOf(GetParam(), 0, size);
    for (const int stage : others) {
      EXPECT_EQ(HashOf(GetParam(), stage, size), whole) << size << " ranks, stage " << stage;
    }
  }
}

TEST_P(OptimizerRanksTest, OffloadGivesTheSameBits) {
  struct Tier {
    const char* device;
    double ratio;
    int stage;
  };
  const uint64_t near = HashOf(GetParam(), 0, 2);
  for (const Tier& tier : {Tier{"cpu", 1, 1}, Tier{"nvme", 1, 3}, Tier{"cpu", 0.5, 3},
                           Tier{"nvme", 0.5, 2}, Tier{"nvme", 0, 1}}) {
    Case offloaded = GetParam();
    const std::string section = "zero_optimization.offload_optimizer.";
    offloaded.overrides.push_back(absl::StrCat(section, "device=", tier.device));
    offloaded.overrides.push_back(absl::StrCat(section, "nvme_path=/tmp"));
    offloaded.overrides.push_back(absl::StrCat(section, "ratio=", tier.ratio));
    EXPECT_EQ(HashOf(offloaded, tier.stage, 2), near)
        << tier.device << ", ratio " << tier.ratio << ", stage " << tier.stage;
  }
}

}  // namespace
}  // namespace dtrain
