#include "runtime/engine/evaluation.h"

#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "dtrain/batch_source.h"
#include "dtrain/token_loader.h"
#include "runtime/engine/live_passes.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/job_state.h"
#include "runtime/job/stop_signal.h"
#include "runtime/model/cpu_rng.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

// Training or evaluation mode of every submodule: a user may keep some in eval mode while training.
class ModuleModes {
 public:
  explicit ModuleModes(torch::nn::Module& module) {
    Remember(module);
    for (const auto& child : module.modules(/*include_self=*/false)) {
      Remember(*child);
    }
  }
  // Parents come first and train() is recursive, so the children's own modes win.
  void Restore() const {
    for (const auto& [module, training] : modes_) {
      module->train(training);
    }
  }

 private:
  void Remember(torch::nn::Module& module) { modes_.emplace_back(&module, module.is_training()); }
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

}  // namespace

absl::Status Evaluation::Load() {
  try {
    absl::Status loaded = calls_.load();
    vote_.has_batch = loaded.ok() ? 1 : 0;
    return IsEndOfData(loaded) ? LoadSpare() : loaded;
  } catch (const std::exception& error) {
    return FromException(
        absl::StrCat("in the data source of an evaluation, ", calls_.description()).c_str(), error);
  }
}

// At stage 3 all ranks run the loss function as often as the one with the most batches.
absl::Status Evaluation::LoadSpare() {
  if (engine_.state.lives().empty() || engine_.job.world_size() == 1) {
    return absl::OkStatus();
  }
  absl::Status loaded = calls_.load_spare();
  vote_.lacks_spare = IsEndOfData(loaded) ? 1 : 0;
  return vote_.lacks_spare != 0 ? absl::OkStatus() : loaded;
}

absl::Status Evaluation::TakeBatch(int64_t micro) {
  BeginPass(engine_.state, plan::GatherSchedule::Pass::kEvaluation);
  micro_batches_.witness().Begin(ForwardWitness::Pass::kEvaluation);
  try {
    const ScopedSeed numbers(micro_batches_.random().SeedOf(MicroBatchOf::kEvaluation, micro));
    const Loss loss = calls_.forward();
    if (vote_.has_batch != 0) {
      ++vote_.samples;
      vote_.count += loss.count;
      if (!loss.is_mean) {
        vote_.loss_sum += loss.sum.item<double>();
      } else if (loss.count > 0) {  // The mean of nothing is NaN.
        vote_.loss_sum += loss.sum.item<double>() * static_cast<double>(loss.count);
      }
    }
    EndPass(engine_.state);
  } catch (const std::exception& error) {
    return FromException("in the loss function of an evaluation", error,
                         micro_batches_.witness().Describe(error));
  }
  return micro_batches_.BackgroundStatus();
}

absl::StatusOr<StepVerdict> Evaluation::AgreeOnNext(const absl::Status& failure) {
  Job& job = engine_.job;
  const int64_t step = engine_.state.progress.step;
  vote_.failed = failure.ok() ? 0 : 1;
  vote_.stop_signal = job.stop_signal();
  // Closures may do what takes its time on one rank, such as writing samples: no learnt limit.
  absl::StatusOr<StepVerdict> agreed =
      Agree(job.group(), vote_, "evaluation agreement",
            Deadline::After(absl::Seconds(job.config().comm_timeout_seconds())));
  if (!agreed.ok()) {
    absl::Status ended = agreed.status();
    TakeMark(ended);
    return ended;
  }
  DT_RETURN_IF_ERROR(failure);
  const StepVerdict& verdict = *agreed;
  if (verdict.failed) {
    return absl::AbortedError(absl::StrFormat("rank %d failed in the evaluation after step %d",
                                              verdict.failed_rank, step));
  }
  if (verdict.stop_signal != 0) {
    job.AgreeToStop(verdict.stop_signal);
  } else if (verdict.ranks_with_batch > 0 && verdict.rank_without_spare >= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the evaluation after step %d: rank %d got no batch at all from %s while %d of %d ranks "
        "have some, and at ZeRO stage 3 every rank must run the loss function; give each rank "
        "at least one batch, or the source a Spare() (dtrain/batch_source.h)",
        step, verdict.rank_without_spare, calls_.description(), verdict.ranks_with_batch,
        job.world_size()));
  }
  return verdict;
}

// Before each micro-batch the ranks agree whether and how they go on, so that all end after the
// same one: some may have no batch left, fail in their source, or have received a stop signal.
absl::StatusOr<StepVerdict> Evaluation::TakeBatches() {
  Job& job = engine_.job;
  const int64_t micro_batches_max =
      calls_.to_end ? std::numeric_limits<int64_t>::max()
                    : job.config().eval_batches() * job.config().gradient_accumulation_steps();
  vote_.step = engine_.state.progress.step;
  vote_.epoch = job.group().epoch();
  absl::Status failure;
  for (int64_t micro = 0;; ++micro) {
    job.Beat("eval", engine_.state.progress.step);
    vote_.has_batch = 0;
    vote_.lacks_spare = 0;
    if (failure.ok() && micro < micro_batches_max) {
      failure = Load();
    }
    DT_ASSIGN_OR_RETURN(const StepVerdict verdict, AgreeOnNext(failure));
    if (verdict.ranks_with_batch == 0 || verdict.stop_signal != 0) {
      return verdict;
    }
    if (vote_.has_batch != 0 || !engine_.state.lives().empty()) {
      failure = TakeBatch(micro);
    }
    if (!failure.ok() && engine_.state.live != nullptr) {
      failure = engine_.health.Explained(failure, engine_.gradients->readiness());
      engine_.health.EndGroups(engine_.state.progress.step + 1,
                               failure);  // The others may wait for weights, not for the agreement.
      return failure;
    }
  }
}

absl::StatusOr<double> Evaluation::Result(const StepVerdict& verdict) const {
  Job& job = engine_.job;
  const int64_t step = engine_.state.progress.step;
  if (verdict.ranks_with_batch > 0) {  // A stop signal ended it before all was read.
    job.state().ended_by_stop = "an evaluation";
    job.metrics().EndEvaluations();
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (verdict.samples == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the evaluation after step %d has no loss: %s has no batch for any rank; give it batches, "
        "and a Restart() if an earlier evaluation has read them (dtrain/batch_source.h)",
        step, calls_.description()));
  }
  if (verdict.count == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the evaluation after step %d has no loss: in %d micro-batches of %s no target counts (the "
        "losses count 0 samples; target %d is ignored, so is the last of each document); evaluate "
        "on other data, or none with eval_interval=0",
        step, verdict.samples, calls_.description(), kIgnoredTarget));
  }
  return verdict.loss();
}

absl::StatusOr<double> Evaluation::Run() {
  DeferStopSignals();
  const at::NoGradGuard no_grad;
  const CpuRngSnapshot numbers_before;
  const absl::Cleanup over = [&numbers_before] { numbers_before.Restore(); };
  DT_RETURN_IF_ERROR(engine_.buffers->BeginEvaluation());
  const absl::Cleanup give_back = [this] { engine_.buffers->EndEvaluation(); };
  calls_.begin();
  const absl::Cleanup end = [this] { calls_.end(); };
  const ModuleModes modes(engine_.module);
  engine_.module.eval();
  const absl::StatusOr<StepVerdict> verdict = TakeBatches();
  modes.Restore();
  if (!verdict.ok() && engine_.state.live != nullptr) {
    DropAllGathered(engine_.state).IgnoreError();
  }
  BeginPass(engine_.state, plan::GatherSchedule::Pass::kTraining);
  engine_.job.Beat("program", engine_.state.progress.step);
  DT_RETURN_IF_ERROR(verdict.status());
  micro_batches_.witness().End(ForwardWitness::Pass::kEvaluation);
  return Result(*verdict);
}

}  // namespace dtrain
