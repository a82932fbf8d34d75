#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/engine/cpu_rng.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/job/exception_status.h"
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

absl::StatusOr<double> Engine::RunEvaluation(absl::FunctionRef<absl::Status()> load,
                                             absl::FunctionRef<Loss()> forward) {
  Impl& impl = *impl_;
  DT_RETURN_IF_ERROR(impl.CheckIdle());
  DT_RETURN_IF_ERROR(impl.SettleGathers());
  impl.job.Beat("eval", impl.state.step);
  const at::NoGradGuard no_grad;
  const CpuRngSnapshot numbers_before;
  const absl::Cleanup over = [&numbers_before] { numbers_before.Restore(); };
  DT_RETURN_IF_ERROR(impl.buffers->BeginEvaluation());
  const absl::Cleanup give_back = [&impl] { impl.buffers->EndEvaluation(); };
  const ModuleModes modes(impl.module);
  impl.module.eval();
  StepVote vote;
  vote.step = impl.state.step;
  vote.epoch = impl.job.group().epoch();
  absl::Status failure;
  try {
    const int64_t batches =
        impl.job.config().eval_batches() * impl.job.config().gradient_accumulation_steps();
    for (int64_t i = 0; i < batches && failure.ok(); ++i) {
      impl.BeginPass(plan::GatherSchedule::Pass::kEvaluation);
      impl.witness.Begin(ForwardWitness::Pass::kEvaluation);
      if (failure = load(); failure.ok()) {
        const ScopedSeed numbers(impl.SeedOf(MicroBatchOf::kEvaluation, i));
        const Loss loss = forward();
        vote.loss_sum += loss.sum.item<double>();
        vote.count += loss.count;
        impl.EndPass();
      }
      failure.Update(impl.BackgroundStatus());
    }
  } catch (const std::exception& error) {
    failure =
        FromException("in the loss function of an evaluation", error, impl.witness.Describe(error));
  }
  if (failure.ok()) {
    impl.witness.End(ForwardWitness::Pass::kEvaluation);
  }
  modes.Restore();
  if (!failure.ok() && impl.state.live != nullptr) {
    failure = impl.Explained(failure);
    impl.FailTogether();  // The others may wait for weights, not for the agreement.
    impl.DropAllGathered().IgnoreError();
    return failure;
  }
  impl.BeginPass(plan::GatherSchedule::Pass::kTraining);
  vote.failed = failure.ok() ? 0 : 1;
  DT_ASSIGN_OR_RETURN(const StepVerdict verdict,
                      Agree(impl.job.group(), vote, "evaluation agreement"));
  DT_RETURN_IF_ERROR(failure);
  if (verdict.failed) {
    return absl::AbortedError(absl::StrFormat("rank %d failed in the evaluation after step %d",
                                              verdict.failed_rank, impl.state.step));
  }
  return verdict.loss_sum / static_cast<double>(std::max<int64_t>(1, verdict.count));
}

}  // namespace dtrain
