#include "tests/runtime/testing/journal_training.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::testing {
namespace {

// The rows of testing::Source, with a position that is a part of the checkpoint.
class TrackedRows : public Tracked {
 public:
  explicit TrackedRows(const Job& job) : rows_{job.rank(), job.world_size(), 1} {}
  absl::StatusOr<at::Tensor> Next() { return rows_.Next(); }
  Json SaveState() const override { return {{"call", rows_.call}}; }
  absl::Status RestoreState(const Json& state) override {
    rows_.call = state.at("call").get<int64_t>();
    return absl::OkStatus();
  }

 private:
  Source rows_;
};

}  // namespace

absl::Status TrainJournalled(RankContext& context, const std::string& folder,
                             const JournalTraining& training, const OpenJournalDevice& open,
                             JournalOutcome& outcome) {
  at::set_num_threads(1);
  std::vector<std::string> overrides = {"train_micro_batch_size_per_gpu=1",
                                        "zero_optimization.reduce_bucket_size=2500",
                                        "zero_optimization.stage3_param_persistence_threshold=100",
                                        "gradient_clipping=0.05",
                                        "optimizer.params.lr=0.01",
                                        "deterministic=true",
                                        "checkpoint.keep=0",
                                        "checkpoint.interval=4",
                                        "checkpoint.journal=async",
                                        "checkpoint.journal_share=1"};
  overrides.insert(overrides.end(), training.overrides.begin(), training.overrides.end());
  DT_ASSIGN_OR_RETURN(auto job,
                      MakeTestJob({.run_dir = folder, .overrides = overrides, .rank = &context}));
  DT_RETURN_IF_ERROR(open(context, *job));
  at::manual_seed(5);
  Net net(/*segments=*/false, training.width);
  const at::Tensor average = at::zeros({10, 4}).to(job->device());
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  TrackedRows source(*job);
  checkpoints->Track("engine", *engine);
  checkpoints->Track("data", source);
  checkpoints->Track("mean", {{"average", average}});
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  outcome.resumed = engine->step();
  std::vector<StepReport> reports;
  while (engine->step() < training.until) {
    const bool bad = engine->step() + 1 == training.bad_step && context.rank == 0;
    DT_ASSIGN_OR_RETURN(reports.emplace_back(), engine->Step(source, [&](const at::Tensor& x) {
      const at::Tensor drawn = at::dropout(x.to(job->device()), 0.1, /*train=*/true);
      const at::Tensor loss = net.Loss(drawn);
      return Loss(bad ? loss * INFINITY : loss, x.size(0));
    }));
    {
      const at::NoGradGuard no_grad;
      average.add_(static_cast<double>(engine->step()));
    }
    training.after_step(net, engine->step());
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
    training.after_save(engine->step());
  }
  for (const StepReport& report : reports) {  // Not before: reading one waits.
    const double loss = report.loss;
    outcome.losses.push_back(std::isfinite(loss) ? loss : -1);
  }
  return training.ends ? checkpoints->Finish() : absl::OkStatus();
}

JournalOutcome JournalOutcomeOf(int ranks, const std::string& folder, const TrainRank& train) {
  const std::string found = folder + "/found.json";
  const auto results = RunRanks(
      {.size = ranks, .time_bound = absl::Seconds(240)}, [&](RankContext& context) -> absl::Status {
        JournalOutcome own;
        const absl::Status status = train(context, own);
        return context.rank != 0 || !status.ok()
                   ? status
                   : WriteFileAtomic(found,
                                     DumpJson({{"resumed", own.resumed}, {"losses", own.losses}}));
      });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  const auto text = ReadFile(found, 1 << 20);
  if (!text.ok()) {
    return {};
  }
  const Json json = *ParseJson(*text, "found");
  return {.resumed = json["resumed"], .losses = json["losses"].get<std::vector<double>>()};
}

}  // namespace dtrain::testing
