// Parameters that no rank's loss uses in some steps: skipped as in torch where
// optimizer.skip_unused_parameters is set, at every ZeRO stage, by every optimizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/plan/stable_hash.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/runtime/testing/optimizer_net.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"

namespace dtrain::engine_unused_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Net = testing::OptimizerNet;
using testing::RankContext;

constexpr char kSkip[] = "optimizer.skip_unused_parameters=true";

// The parameters that a rank uses in step `step`, counted from 0: `gain` in every second step,
// `embed` from the fourth on, `down` in all but the second, where only the last rank uses it, and
// the fifth, where none does.
struct Uses {
  explicit Uses(int64_t step, bool last)
      : gain(step % 2 == 0), embed(step >= 3), down(step == 1 ? last : step != 4) {}
  bool gain, embed, down;
};

at::Tensor LossOf(const Net& net, const at::Tensor& x, const Uses& uses) {
  at::Tensor h = x.to(net.up.scalar_type());
  h = uses.embed ? h.matmul(net.embed) : h.repeat({1, 13}).narrow(1, 0, 90);
  h = at::tanh(h.matmul(net.up.t()));
  h = uses.gain ? h * net.gain : h;
  h = uses.down ? h.matmul(net.down.t()) : h;
  return h.square().sum(at::kFloat);
}

at::Tensor Input(int64_t step) {
  return at::sin(at::arange(0, 84, at::kFloat).reshape({12, 7}) + static_cast<double>(step));
}

struct Source {
  int rank = 0;
  int size = 1;
  int64_t step = 0;
  absl::StatusOr<at::Tensor> Next() {
    return Input(step++).narrow(0, rank * 12 / size, 12 / size).contiguous();
  }
};

absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const std::vector<std::string>& more,
                                             const std::string& group = "world") {
  std::vector<std::string> overrides = {"train_micro_batch_size_per_gpu=1", "deterministic=true",
                                        "gradient_clipping=0",
                                        "zero_optimization.reduce_bucket_size=9000"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return testing::MakeTestJob(
      {.run_dir = folder, .overrides = overrides, .rank = context, .group = group});
}

absl::StatusOr<StepReport> TakeStep(Engine& engine, const Net& net, Source& source) {
  const Uses uses(source.step, source.rank + 1 == source.size);
  return engine.Step(source,
                     [&](const at::Tensor& x) { return Loss(LossOf(net, x, uses), x.size(0)); });
}

class EngineUnusedTest : public ::testing::Test {
 protected:
  EngineUnusedTest() { at::set_num_threads(1); }
  // One rank and torch's optimizer over `reference` end each of twelve steps with the same weights.
  void ExpectSame(const std::string& optimizer, Net& reference, torch::optim::Optimizer& torch) {
    auto job = MakeJob(nullptr, folder_.path(), {"optimizer=" + optimizer, kSkip});
    ASSERT_TRUE(job.ok()) << job.status();
    at::manual_seed(5);
    Net net;
    const auto engine = Engine::Create(**job, net);
    ASSERT_TRUE(engine.ok()) << engine.status();
    Source source;
    for (int64_t step = 0; step < 12; ++step) {
      reference.zero_grad();
      (LossOf(reference, Input(step), Uses(step, true)) / 12).backward();
      torch.step();
      const auto report = TakeStep(**engine, net, source);
      ASSERT_TRUE(report.ok()) << report.status();
      for (const auto& item : reference.named_parameters()) {
        const at::Tensor ours = net.named_parameters()[item.key()];
        ASSERT_TRUE(at::allclose(ours, item.value(), 2e-5, 2e-6))
            << optimizer << ", step " << step << ", " << item.key() << ": "
            << (ours - item.value()).abs().max().item<double>();
      }
    }
  }
  static Net Reference() {
    at::manual_seed(5);
    return Net();
  }
  testing::TempFolder folder_;
};

TEST_F(EngineUnusedTest, AreSkippedAsTorchSkipsThem) {
  {
    Net net = Reference();
    torch::optim::AdamW torch(net.parameters(), torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    ExpectSame(R"({"params":{"lr":0.01,"weight_decay":0.1}})", net, torch);
  }
  {
    Net net = Reference();
    torch::optim::Adam torch(net.parameters(), torch::optim::AdamOptions(0.01).weight_decay(0.3));
    ExpectSame(R"({"type":"Adam","params":{"adam_w_mode":false,"lr":0.01,"weight_decay":0.3}})",
               net, torch);
  }
  {
    Net net = Reference();
    torch::optim::SGD torch(
        net.parameters(),
        torch::optim::SGDOptions(0.01).momentum(0.9).dampening(0.4).weight_decay(0.1));
    ExpectSame(
        R"({"type":"SGD","params":{"lr":0.01,"momentum":0.9,"dampening":0.4,"weight_decay":0.1}})",
        net, torch);
  }
  {
    Net net = Reference();
    torch::optim::Adagrad torch(
        net.parameters(), torch::optim::AdagradOptions(0.02).lr_decay(0.1).weight_decay(0.05));
    ExpectSame(R"({"type":"Adagrad","params":{"lr":0.02,"lr_decay":0.1,"weight_decay":0.05}})", net,
               torch);
  }
}

struct Case {
  std::string name;
  std::vector<std::string> overrides;
  bool own = false;
};

std::vector<Case> Cases() {
  return {
      {"AdamW", {R"(optimizer={"params":{"lr":0.01,"weight_decay":0.1}})"}},
      {"SGD", {R"(optimizer={"type":"SGD","params":{"momentum":0.9,"weight_decay":0.1}})"}},
      {"Lion", {R"(optimizer={"type":"Lion","params":{"lr":0.001,"weight_decay":0.1}})"}},
      {"Adagrad", {R"(optimizer={"type":"Adagrad","params":{"weight_decay":0.1}})"}},
      {"Lamb", {R"(optimizer={"type":"Lamb","params":{"lr":0.01,"weight_decay":0.1}})"}},
      {"Muon", {R"(optimizer={"type":"Muon","params":{"weight_decay":0.1}})"}},
      {"AdamW in bf16",
       {R"(optimizer={"params":{"betas":[0.9,0.999],"weight_decay":0.1}})", "bf16.enabled=true",
        "bf16.bf16_optimizer_states=true", "bf16.stochastic_rounding=true"}},
      {"Muon in fp16",
       {R"(optimizer={"type":"Muon"})", "fp16.enabled=true", "fp16.initial_scale_power=4"}},
      {"the program's own", {}, true},
  };
}

std::vector<std::vector<std::string>> Ways() {
  const std::string offload = "zero_optimization.offload_optimizer.";
  return {{"zero_optimization.stage=0"},
          {"zero_optimization.stage=1"},
          {"zero_optimization.stage=2"},
          {"zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0"},
          {"zero_optimization.stage=1", offload + "device=cpu"},
          {"zero_optimization.stage=3", offload + "device=nvme", offload + "nvme_path=/tmp",
           offload + "ratio=0.5"}};
}

// The bytes of each parameter, in the order of registration.
absl::StatusOr<std::vector<std::string>> WeightsOf(Engine& engine, const Net& net) {
  std::vector<std::string> bytes;
  DT_RETURN_IF_ERROR(engine.WithParameters([&] {
    for (const at::Tensor& parameter : net.parameters()) {
      const at::Tensor copy = parameter.detach().clone();
      bytes.emplace_back(static_cast<const char*>(copy.const_data_ptr()), copy.nbytes());
    }
  }));
  return bytes;
}

// Six steps; a hash of the weights. Internal: a step left a weight that a rank used, or changed one
// that none did.
absl::StatusOr<uint64_t> Train(RankContext& context, const Case& test,
                               const std::vector<std::string>& way, const std::string& group) {
  const testing::TempFolder folder;
  std::vector<std::string> overrides = test.overrides;
  overrides.insert(overrides.end(), way.begin(), way.end());
  overrides.emplace_back(kSkip);
  DT_ASSIGN_OR_RETURN(auto job, MakeJob(&context, folder.path(), overrides, group));
  at::manual_seed(5);
  Net net;
  EngineOptions options;
  if (test.own) {
    options.optimizer = std::make_shared<testing::Halves>();
  }
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net, options));
  Source source{.rank = context.rank, .size = context.size};
  DT_ASSIGN_OR_RETURN(std::vector<std::string> before, WeightsOf(*engine, net));
  for (int64_t step = 0; step < 6; ++step) {
    DT_ASSIGN_OR_RETURN(const StepReport report, TakeStep(*engine, net, source));
    if (report.skipped) {
      return absl::InternalError(absl::StrCat("step ", step, " was skipped"));
    }
    DT_ASSIGN_OR_RETURN(std::vector<std::string> after, WeightsOf(*engine, net));
    const Uses uses(step, /*last=*/true);
    const bool used[] = {true, uses.gain, uses.down, uses.embed};
    for (size_t i = 0; i < after.size(); ++i) {
      if ((after[i] != before[i]) != used[i]) {
        return absl::InternalError(
            absl::StrCat("step ", step, ": parameter ", i, used[i] ? " was left" : " was changed"));
      }
    }
    before = std::move(after);
  }
  plan::StableHash hash;
  for (const std::string& bytes : before) {
    hash.Add(bytes);
  }
  return hash.value();
}

TEST_F(EngineUnusedTest, EveryOptimizerSkipsThemAlikeAtEveryStageAndInEveryTier) {
  constexpr absl::Duration kBound = absl::Seconds(250);
  auto cluster = testing::Cluster::Start(
      {.size = 2, .time_bound = kBound}, [](RankContext& context) -> absl::Status {
        at::set_num_threads(1);
        Json hashes = Json::object();
        int trainings = 0;
        for (const Case& test : Cases()) {
          for (const auto& way : Ways()) {
            const auto hash = Train(context, test, way, absl::StrCat("training-", ++trainings));
            hashes[test.name].push_back(hash.ok() ? absl::StrCat(*hash) : hash.status().ToString());
          }
        }
        return context.store->Set(absl::StrCat("hashes/", context.rank), DumpJson(hashes),
                                  Deadline::After(absl::Seconds(10)));
      });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (int rank = 0; rank < 2; ++rank) {
    const auto text = (*cluster)->Result(absl::StrCat("hashes/", rank));
    ASSERT_TRUE(text.ok()) << text.status();
    const Json hashes = *ParseJson(*text, "hashes");
    for (const Case& test : Cases()) {
      for (size_t way = 0; way < Ways().size(); ++way) {
        const auto hash = hashes.at(test.name).at(way).get<std::string>();
        EXPECT_THAT(hash, ::testing::ContainsRegex("^[0-9]+$"));
        EXPECT_EQ(hash, hashes.at(test.name).at(0).get<std::string>())
            << test.name << ", rank " << rank << ": " << Ways()[way].front() << ", "
            << Ways()[way].back();
      }
    }
  }
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// A resumed run knows how many updates each parameter had, at another stage too.
TEST_F(EngineUnusedTest, ACheckpointHoldsHowManyUpdatesEachHasMissed) {
  const auto train = [](const std::string& folder, int stage, int until,
                        std::vector<std::string>& weights) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto job, MakeJob(nullptr, folder,
                                          {R"(optimizer={"params":{"lr":0.01,"weight_decay":0.1}})",
                                           kSkip, "checkpoint.interval=4",
                                           absl::StrCat("zero_optimization.stage=", stage)}));
    at::manual_seed(5);
    Net net;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
    DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
    checkpoints->Track("engine", *engine);
    DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
    Source source{.step = engine->step()};
    while (engine->step() < until) {
      DT_RETURN_IF_ERROR(TakeStep(*engine, net, source).status());
      DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
    }
    DT_ASSIGN_OR_RETURN(weights, WeightsOf(*engine, net));
    return absl::OkStatus();
  };
  std::vector<std::string> straight, resumed;
  ASSERT_TRUE(train(folder_.path(), 0, 8, straight).ok());
  for (const int stage : {0, 2, 3}) {
    const testing::TempFolder folder;
    const absl::Status first = train(folder.path(), 1, 4, resumed);
    ASSERT_TRUE(first.ok()) << first;
    EXPECT_NE(resumed, straight);
    const absl::Status rest = train(folder.path(), stage, 8, resumed);
    ASSERT_TRUE(rest.ok()) << rest;
    EXPECT_EQ(resumed, straight) << "stage " << stage;
  }
}

// The log of a training of three steps; `change` is called before the first.
std::string LogOf(const std::vector<std::string>& more, const std::function<void(Net&)>& change) {
  const testing::TempFolder folder;
  const auto job = *MakeJob(nullptr, folder.path(), more);
  Net net;
  const auto engine = *Engine::Create(*job, net);
  change(net);
  ::testing::internal::CaptureStderr();
  Source source{.step = 3};  // Leaves out `gain`, then `down`, then `gain` again.
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(TakeStep(*engine, net, source).ok());
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(EngineUnusedTest, EachIsNamedOnceWithWhatHappensToIt) {
  const std::string log = LogOf({}, [](Net& /*net*/) {});
  EXPECT_THAT(log, HasSubstr("step 1: no rank's loss used 1 of 4 parameters: gain; their gradient "
                             "is zero, and weight decay"));
  EXPECT_THAT(log, HasSubstr("step 2: no rank's loss used 1 of 4 parameters: down;"));
  EXPECT_THAT(log, Not(HasSubstr("step 3:")));
  EXPECT_THAT(
      LogOf({kSkip}, [](Net& /*net*/) {}),
      AllOf(HasSubstr("parameters: gain; they stay as they are"),
            HasSubstr("parameters: down; they stay as they are"), Not(HasSubstr("step 3:"))));
}

// Nobody sees the member change; its parameter gets no gradient any more.
TEST_F(EngineUnusedTest, AMemberThatWasAssignedAnotherTensorIsNamed) {
  EXPECT_THAT(LogOf({},
                    [](Net& net) {
                      net.up = at::zeros({144, 90});
                    }),
              AllOf(HasSubstr("no rank's loss used 2 of 4 parameters: up, gain;"),
                    HasSubstr("was assigned another tensor than the registered one")));
}

}  // namespace
}  // namespace dtrain::engine_unused_test
