#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "dtrain/batch_source.h"
#include "dtrain/engine.h"
#include "dtrain/token_loader.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/job/exception_status.h"
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

absl::Status Engine::Impl::LoadForEvaluation(const EvaluationCalls& calls, StepVote& vote) {
  try {
    absl::Status loaded = calls.load();
    vote.has_batch = loaded.ok() ? 1 : 0;
    if (!IsEndOfData(loaded)) {
      return loaded;
    }
    return LoadSpare(calls, vote);
  } catch (const std::exception& error) {
    return FromException("in the data source of an evaluation", error);
  }
}

// At stage 3 all ranks run the loss function as often as the one with the most batches.
absl::Status Engine::Impl::LoadSpare(const EvaluationCalls& calls, StepVote& vote) {
  if (state.lives().empty() || job.world_size() == 1) {
    return absl::OkStatus();
  }
  absl::Status loaded = calls.load_spare();
  vote.lacks_spare = IsEndOfData(loaded) ? 1 : 0;
  return vote.lacks_spare != 0 ? absl::OkStatus() : loaded;
}

// Adds to `vote` what its batch's loss is.
absl::Status Engine::Impl::EvaluateBatch(const EvaluationCalls& calls, int64_t micro,
                                         StepVote& vote) {
  BeginPass(plan::GatherSchedule::Pass::kEvaluation);
  witness.Begin(ForwardWitness::Pass::kEvaluation);
  try {
    const ScopedSeed numbers(SeedOf(MicroBatchOf::kEvaluation, micro));
    const Loss loss = calls.forward();
    if (vote.has_batch != 0) {
      ++vote.samples;
      vote.count += loss.count;
      if (!loss.is_mean) {
        vote.loss_sum += loss.sum.item<double>();
      } else if (loss.count > 0) {  // The mean of nothing is NaN.
        vote.loss_sum += loss.sum.item<double>() * static_cast<double>(loss.count);
      }
    }
    EndPass();
  } catch (const std::exception& error) {
    return FromException("in the loss function of an evaluation", error, witness.Describe(error));
  }
  return BackgroundStatus();
}

// Before each micro-batch the ranks agree whether and how they go on, so that all end after the
// same one: some may have no batch left, fail in their source, or have received a stop signal.
absl::StatusOr<StepVerdict> Engine::Impl::EvaluateBatches(const EvaluationCalls& calls) {
  const int64_t micro_batches_max =
      job.config().eval_batches() * job.config().gradient_accumulation_steps();
  StepVote vote;
  vote.step = state.step;
  vote.epoch = job.group().epoch();
  absl::Status failure;
  for (int64_t micro = 0;; ++micro) {
    job.Beat("eval", state.step);
    vote.has_batch = 0;
    vote.lacks_spare = 0;
    if (failure.ok() && micro < micro_batches_max) {
      failure = LoadForEvaluation(calls, vote);
    }
    vote.failed = failure.ok() ? 0 : 1;
    vote.stop_signal = job.stop_signal();
    // Closures may do what takes its time on one rank, such as writing samples: no learnt limit.
    DT_ASSIGN_OR_RETURN(const StepVerdict verdict,
                        Agree(job.group(), vote, "evaluation agreement",
                              Deadline::After(absl::Seconds(job.config().comm_timeout_seconds()))));
    DT_RETURN_IF_ERROR(failure);
    if (verdict.failed) {
      return absl::AbortedError(absl::StrFormat("rank %d failed in the evaluation after step %d",
                                                verdict.failed_rank, state.step));
    }
    if (verdict.stop_signal != 0) {
      job.AgreeToStop(verdict.stop_signal);
    }
    if (verdict.ranks_with_batch == 0 || verdict.stop_signal != 0) {
      return verdict;
    }
    if (verdict.rank_without_spare >= 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the evaluation after step %d: rank %d got no batch at all from %s while %d of %d ranks "
          "have some, and at ZeRO stage 3 every rank must run the loss function; give each rank "
          "at least one batch, or the source a Spare() (dtrain/batch_source.h)",
          state.step, verdict.rank_without_spare, calls.description(), verdict.ranks_with_batch,
          job.world_size()));
    }
    if (vote.has_batch != 0 || !state.lives().empty()) {
      failure = EvaluateBatch(calls, micro, vote);
    }
    if (!failure.ok() && state.live != nullptr) {
      failure = Explained(failure);
      FailTogether();  // The others may wait for weights, not for the agreement.
      return failure;
    }
  }
}

// What an evaluation that ended with `verdict` gives.
absl::StatusOr<double> Engine::Impl::EvaluatedLoss(const EvaluationCalls& calls,
                                                   const StepVerdict& verdict) {
  if (verdict.ranks_with_batch > 0) {  // A stop signal ended it before all was read.
    job.state().evaluation_stopped = true;
    job.metrics().EndEvaluations();
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (verdict.samples == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the evaluation after step %d has no loss: %s has no batch for any rank; give it batches, "
        "and a Restart() if an earlier evaluation has read them (dtrain/batch_source.h)",
        state.step, calls.description()));
  }
  if (verdict.count == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the evaluation after step %d has no loss: in %d micro-batches of %s no target counts (the "
        "losses count 0 samples; target %d is ignored, so is the last of each document); evaluate "
        "on other data, or none with eval_interval=0",
        state.step, verdict.samples, calls.description(), kIgnoredTarget));
  }
  return verdict.loss();
}

absl::StatusOr<double> Engine::RunEvaluation(const EvaluationCalls& calls) {
  Impl& impl = *impl_;
  DT_RETURN_IF_ERROR(impl.CheckIdle());
  DT_RETURN_IF_ERROR(impl.SettleGathers());
  DeferStopSignals();
  const at::NoGradGuard no_grad;
  const CpuRngSnapshot numbers_before;
  const absl::Cleanup over = [&numbers_before] { numbers_before.Restore(); };
  DT_RETURN_IF_ERROR(impl.buffers->BeginEvaluation());
  const absl::Cleanup give_back = [&impl] { impl.buffers->EndEvaluation(); };
  calls.begin();
  const absl::Cleanup end = [&calls] { calls.end(); };
  const ModuleModes modes(impl.module);
  impl.module.eval();
  const absl::StatusOr<StepVerdict> verdict = impl.EvaluateBatches(calls);
  modes.Restore();
  if (!verdict.ok() && impl.state.live != nullptr) {
    impl.DropAllGathered().IgnoreError();
  }
  impl.BeginPass(plan::GatherSchedule::Pass::kTraining);
  DT_RETURN_IF_ERROR(verdict.status());
  impl.witness.End(ForwardWitness::Pass::kEvaluation);
  return impl.EvaluatedLoss(calls, *verdict);
}

}  // namespace dtrain
