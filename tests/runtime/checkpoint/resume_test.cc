// A run that goes on from a checkpoint is the run that never stopped: to the bit, also where the
// model draws random numbers and steps were skipped.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "runtime/optimizer/engine_state.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::resume_test {
namespace {

using testing::RankContext;

// This model draws numbers of both kinds. One of the normal ones is left over for the next call.
class Noisy : public torch::nn::Module {
 public:
  Noisy() { weight = register_parameter("weight", at::full({64, 5}, 0.5)); }
  at::Tensor Loss() {
    noise = at::randn({5}) + at::rand({5});
    return weight.matmul(noise.to(weight.scalar_type())).square().sum(at::kFloat);
  }
  at::Tensor weight, noise;
};

struct Calls {
  absl::StatusOr<int> Next() { return 0; }
};

struct ResumeWay {
  const char* name;
  std::vector<std::string> overrides;
  std::vector<int64_t> skipped = {};  // Steps whose loss is not finite.
};

// Takes eight steps, of which the third is saved; with `resume` those behind it. Gives a row for
// each step (loss, rate, scale, whether it was skipped, the first number drawn) and last the
// engine's record.
absl::StatusOr<std::vector<std::vector<double>>> TrainNoisy(RankContext& context,
                                                            const std::string& folder,
                                                            const ResumeWay& way, bool resume) {
  std::vector<std::string> overrides = {
      "train_micro_batch_size_per_gpu=1", "checkpoint.interval=3", "gradient_clipping=0.01",
      R"(scheduler={"type":"WarmupLR","params":{"warmup_max_lr":0.02,"warmup_num_steps":20,)"
      R"("warmup_type":"linear"}})",
      "zero_optimization.stage3_param_persistence_threshold=0"};
  overrides.insert(overrides.end(), way.overrides.begin(), way.overrides.end());
  DT_ASSIGN_OR_RETURN(auto job, testing::MakeTestJob({.run_dir = folder,
                                                      .overrides = overrides,
                                                      .rank = &context,
                                                      .group = resume ? "resumed" : "straight"}));
  at::manual_seed(resume ? 99U : static_cast<uint64_t>(5 + context.rank));
  Noisy model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  if (resume) {
    DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  }
  std::vector<std::vector<double>> rows;
  Calls source;
  while (engine->step() < 8) {
    const int64_t step = engine->step() + 1;
    const bool bad = std::find(way.skipped.begin(), way.skipped.end(), step) != way.skipped.end();
    DT_ASSIGN_OR_RETURN(const auto report, engine->Step(source, [&](int) {
      // Fewer samples at first: what the first micro-batch counted is part of the record.
      return Loss(model.Loss() * (bad ? std::numeric_limits<double>::infinity() : 1.0),
                  step == 1 ? 2 : 64);
    }));
    rows.push_back({bad ? 0.0 : double{report.loss}, report.learning_rate, report.loss_scale,
                    report.skipped ? 1.0 : 0.0, model.noise[0].item<double>()});
    if (step == 3 && !resume) {
      DT_RETURN_IF_ERROR(checkpoints->MaybeSave(step));
    }
  }
  const EngineState& state = engine->state();
  const plan::LossScale& scale = state.progress.loss_scale;
  rows.push_back({static_cast<double>(state.progress.step),
                  static_cast<double>(state.progress.updates),
                  static_cast<double>(state.progress.skipped), scale.scale,
                  static_cast<double>(scale.hysteresis), static_cast<double>(scale.steps),
                  static_cast<double>(scale.last_overflow), state.progress.loss_unit});
  return rows;
}

class ResumeTest : public ::testing::TestWithParam<std::tuple<ResumeWay, int>> {};

INSTANTIATE_TEST_SUITE_P(
    Ways, ResumeTest,
    ::testing::Combine(
        ::testing::Values(
            ResumeWay{"fp32_stage0", {}, {}},
            ResumeWay{"bf16_stage2", {"bf16.enabled=true", "zero_optimization.stage=2"}, {2, 6}},
            // The first overflow is forgiven, the second is not; the scale grows again at the end.
            ResumeWay{"fp16_stage0",
                      {"fp16.enabled=true", "fp16.initial_scale_power=8", "fp16.hysteresis=2",
                       "fp16.loss_scale_window=2"},
                      {2, 4}},
            ResumeWay{"fp16_stage3",
                      {"fp16.enabled=true", "fp16.initial_scale_power=8", "fp16.hysteresis=2",
                       "fp16.loss_scale_window=2", "zero_optimization.stage=3"},
                      {2, 4}}),
        ::testing::Values(1, 2)),
    [](const auto& test) {
      return absl::StrCat(std::get<0>(test.param).name, "_ranks", std::get<1>(test.param));
    });

TEST_P(ResumeTest, ARunThatDrawsNumbersAndSkipsStepsGoesOnToTheBit) {
  const testing::TempFolder folder;
  const auto& [way, ranks] = GetParam();
  for (const auto& result :
       testing::RunRanks({.size = ranks}, [&](RankContext& context) -> absl::Status {
         at::set_num_threads(1);
         DT_ASSIGN_OR_RETURN(const auto straight,
                             TrainNoisy(context, folder.path(), way, /*resume=*/false));
         DT_ASSIGN_OR_RETURN(const auto resumed,
                             TrainNoisy(context, folder.path(), way, /*resume=*/true));
         const Json wanted(std::vector<std::vector<double>>(straight.begin() + 3, straight.end()));
         const bool skips = straight.back()[2] == static_cast<double>(way.skipped.size());
         return skips && Json(resumed) == wanted
                    ? absl::OkStatus()
                    : absl::InternalError(absl::StrCat("rank ", context.rank, ": ",
                                                       DumpJson(Json(resumed)),
                                                       ", straight: ", DumpJson(Json(straight))));
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::resume_test
