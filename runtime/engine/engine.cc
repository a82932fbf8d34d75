#include "dtrain/engine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/engine/loss_unit.h"
#include "runtime/gradients/non_finite.h"
#include "runtime/gradients/ordered_squares.h"
#include "runtime/job/announce.h"
#include "runtime/job/exception_status.h"
#include "runtime/memory/memory_in_use.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/phase.h"
#include "runtime/plan/optimizer/lr_schedule.h"
#include "torch/nn/module.h"

namespace dtrain {
Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

int64_t Engine::step() const { return impl_->state.step; }

absl::Status Engine::Impl::CheckIdle() const {
  return with_parameters ? absl::FailedPreconditionError(
                               "an engine that runs a function of WithParameters cannot step, "
                               "evaluate or run another: return from the function first")
                         : Usable();
}

absl::Status Engine::Impl::CheckLoss(const Loss& loss) {
  if (!loss.sum.defined() || loss.sum.numel() != 1 || !loss.sum.requires_grad()) {
    return absl::InvalidArgumentError(
        "the loss must be one number that depends on a trainable parameter");
  }
  if (loss.count < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the loss counts %d samples; allowed: 0 or more", loss.count));
  }
  return absl::OkStatus();
}

absl::Status Engine::Impl::CheckModel() {
  if (micro_batches > 0) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(registered.CheckUnchanged(module));
  DT_RETURN_IF_ERROR(state.flat->CheckInPlace());
  if (state.frozen != nullptr) {
    DT_RETURN_IF_ERROR(state.frozen->flat->CheckInPlace());
    DT_RETURN_IF_ERROR(state.frozen->flat->CheckUnwritten());
  }
  return state.live != nullptr || state.master.defined() ? state.flat->CheckUnwritten()
                                                         : absl::OkStatus();
}

absl::Status Engine::Impl::Differentiate(const Loss& loss, bool retain_graph) {
  const double factor = loss_factor();
  (factor == 1 ? loss.sum : loss.sum.to(at::kFloat) * factor)
      .backward(/*gradient=*/{}, retain_graph);
  return AddLoss(loss.sum);
}

absl::Status Engine::Impl::Backward(const Loss& loss, const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(Usable());
  Begin();
  if (micro_batches == 0) {
    DT_RETURN_IF_ERROR(EndFirstForward());
  }
  DT_RETURN_IF_ERROR(CheckModel());  // First: a loss of frozen weights is no fault of the loss.
  DT_RETURN_IF_ERROR(CheckLoss(loss));
  if (reducing) {
    return absl::FailedPreconditionError(
        "Backward after the step's last micro-batch: call Update first, or pass last_micro_batch = "
        "false to all but the last");
  }
  const bool scaled = job.config().precision().kind == PrecisionConfig::Kind::kFloat16;
  if (scaled && micro_batches == 0) {
    DT_RETURN_IF_ERROR(AccountForLastStep());  // The loss's scale follows from how it ended.
  }
  if (scaled && state.loss_unit == 0) {
    DT_ASSIGN_OR_RETURN(state.loss_unit, AgreeOnLossUnit(job.group(), loss.count));
  }
  reducing = options.last_micro_batch;
  reducer->BeginMicroBatch(state.step + 1, reducing);
  const ScopedPhase phase("dtrain::backward", report.backward_s);
  MarkPhase(&StepNumbers::backward_s);
  absl::Status status;
  witness.Begin(ForwardWitness::Pass::kBackward);
  try {
    RefreshWeightCodes();
    BeginBackwardPass();
    status = Differentiate(loss, options.retain_graph);
  } catch (const std::exception& error) {
    status = FromException("in backward", error, witness.Describe(error));
  }
  if (status.ok()) {
    MarkPhase(nullptr);
    status = EndMicroBatch(loss.count, options);
  }
  if (!status.ok()) {
    status = Explained(status);
    FailStep(status);
    Abandon();  // Nothing takes gradients from this backward any more.
  }
  return status;
}

absl::Status Engine::Impl::EndMicroBatch(int64_t loss_count, const BackwardOptions& options) {
  count += loss_count;
  samples += options.samples > 0 ? options.samples : loss_count;
  ++micro_batches;
  counted_micro_batches += loss_count > 0 || options.samples > 0 ? 1 : 0;
  DT_RETURN_IF_ERROR(BackgroundStatus());
  EndPass();
  DT_RETURN_IF_ERROR(BackgroundStatus());
  BeginPass(plan::GatherSchedule::Pass::kTraining);  // What follows is the next forward.
  return reducer->FinishBackward();
}

// `left`: bytes that a forward left, where a far tier may be counted too.
void Engine::Impl::NoteActivations(int64_t left) {
  if (activation_store != nullptr && activation_store->in_counted_memory()) {
    left -= activation_store->far_bytes();
  }
  activations = std::max(activations, left);
}

absl::StatusOr<StepVerdict> Engine::Impl::Vote(const GradientSquares& squares, bool failed) {
  StepVote vote;
  vote.loss_sum = loss_sum;
  vote.count = count;
  vote.samples = samples;
  vote.step = state.step;
  vote.epoch = job.group().epoch();
  vote.sum_of_squares = squares.sum;
  vote.of_shard = squares.of_shard ? 1 : 0;
  vote.stop_signal = job.stop_signal();
  vote.failed = failed ? 1 : 0;
  vote.unused_parameters = unused->Note(reducer->used());
  vote.buffers_changed = buffers->Changed() ? 1 : 0;
  return Agree(job.group(), vote);
}

absl::Status Engine::Impl::TakeUnused(const StepVerdict& verdict) {
  DT_RETURN_IF_ERROR(unused->Agree(verdict.compares_unused, state.step + 1));
  used_pieces.clear();
  if (unused->skipping()) {
    used_pieces = update_pieces;
    for (std::vector<UpdatePiece>& bucket : used_pieces) {
      std::erase_if(bucket, [this](const UpdatePiece& piece) {
        return unused->unused(static_cast<size_t>(piece.entry));
      });
    }
  }
  return absl::OkStatus();
}

void Engine::Impl::CountUpdate() {
  ++state.updates;
  for (size_t i = 0; unused->skipping() && i < state.missed.size(); ++i) {
    state.missed[i] += unused->unused(i) ? 1 : 0;
  }
}

// `gradient_scale` unscales and clips.
UpdateStep Engine::Impl::StepOf(double gradient_scale) const {
  const Config& config = job.config();
  UpdateStep step{.update = state.updates + 1,
                  .gradient_scale = gradient_scale,
                  .gradient_limit = config.gradient_clipping_value(),
                  .settings = settings};
  if (config.Find("bf16.stochastic_rounding")->get<bool>()) {
    constexpr uint64_t kRoundingStream = 0x726f756e64696e67;  // Its bits are no other stream's.
    step.rounding = {.seed = MixBits(kRoundingStream ^ static_cast<uint64_t>(config.seed())),
                     .offset = static_cast<uint64_t>(step.update)};
  }
  for (size_t i = 0; i < state.missed.size(); ++i) {  // Then settings are by parameter.
    step.settings[i].missed = state.missed[i];
  }
  for (ParamSettings& group : step.settings) {
    group.lr = plan::GroupLrAt(config.scheduler(), config.optimizer().lr, group.lr, state.updates);
    const plan::Betas betas =
        plan::BetasAt(config.scheduler(), {group.beta1, group.beta2}, state.updates);
    group.beta1 = betas.first;
    group.beta2 = betas.second;
  }
  return step;
}

absl::Status Engine::Impl::UpdateFromFar(const UpdateStep& step, const ReducedGradient& gradient) {
  return stream->Run(StepChunks(), [&](const StateChunk& chunk, absl::Span<std::byte* const> near) {
    for (const UpdatePiece& piece : chunk.pieces) {
      UpdatePieceBy(*rule, step, piece, NearMemoryOf(state, gradient, piece, chunk.local, near));
    }
    if (chunk.ends_bucket && gather != nullptr) {
      gather->Start(chunk.bucket);
    }
  });
}

absl::Status Engine::Impl::Apply(const StepVerdict& verdict) {
  const Config& config = job.config();
  // The mean's gradient from that of the sum times loss_factor().
  const double to_mean =
      verdict.count > 0 ? 1.0 / (static_cast<double>(verdict.count) * loss_factor()) : 0.0;
  report.grad_norm = std::sqrt(verdict.sum_of_squares) * to_mean;
  report.loss_scale = state.loss_scale.scale;
  report.learning_rate = plan::LrAt(config.scheduler(), state.updates);
  if (!verdict.updates()) {
    report.skipped = true;
    ++state.skipped;
    return absl::OkStatus();
  }
  double scale = to_mean;
  if (const double limit = config.gradient_clipping(); limit > 0 && report.grad_norm > limit) {
    scale *= limit / (report.grad_norm + 1e-6);  // torch.nn.utils.clip_grad_norm_'s formula.
  }
  const UpdateStep step = StepOf(scale);
  const ReducedGradient gradient = reducer->reduced();
  DT_RETURN_IF_ERROR(
      rule->Prepare({job.group(), state, gradient, StepPieces(), step, stream.get()}));
  if (stream != nullptr) {
    DT_RETURN_IF_ERROR(UpdateFromFar(step, gradient));
  } else if (gradient_shards != nullptr) {
    UpdateBehindStep(step, gradient);
  } else {
    for (const int bucket : update_order) {
      UpdatePiecesBy(*rule, step, state, gradient, StepPieces()[static_cast<size_t>(bucket)]);
      if (gather != nullptr) {
        gather->Start(bucket);
      }
    }
  }
  CountUpdate();
  return absl::OkStatus();
}

StepReport Engine::Impl::Finish(const StepVerdict& verdict) {
  ++state.step;
  report.step = state.step;
  report.tokens = verdict.samples;
  report.unit = state.options.sample_unit;
  job.metrics().SetStep(state.step);
  report.loss = verdict.loss();
  report.model_flops = state.options.flops_per_sample * static_cast<double>(samples);
  report.gemm_flops_per_s = gemm_probe.rate();
  report.peak_flops_per_s = peak_flops;
  report.seconds = static_cast<double>(Clock::Real().MonotonicNanos() - step_start_nanos) * 1e-9;
  report.memory = MemoryNow(activations);
  if (activation_store != nullptr) {
    report.memory.far_activations = activation_store->TakePeakFarBytes();
  }
  const RecomputeSeconds again = TakeRecomputeSeconds();
  report.recompute_s = again.recompute;
  report.activation_wait_s = again.wait;
  StepReport finished = report;
  trace.End(state.step);
  CheckGroupEngines(job.state());
  Abandon();  // Buckets and sums are free for the next step.
  return finished;
}

absl::StatusOr<StepReport> Engine::Update() {
  Impl& impl = *impl_;
  DT_RETURN_IF_ERROR(impl.Usable());
  if (!impl.reducing) {
    return absl::FailedPreconditionError(
        "Update without a Backward of the last micro-batch before it (last_micro_batch = true)");
  }
  impl.DropWeightCodes();
  const plan::LossScale scale_before = impl.state.loss_scale;
  std::string culprit;
  int64_t counted = 0;
  const auto work = [&]() -> absl::StatusOr<StepReport> {
    std::optional<StepVerdict> verdict;
    {
      const ScopedPhase phase("dtrain::wait", impl.report.exposed_comm_s);
      DT_RETURN_IF_ERROR(impl.BackgroundStatus());
      DT_ASSIGN_OR_RETURN(GradientSquares squares, impl.reducer->Wait());
      if (impl.job.config().deterministic()) {
        DT_ASSIGN_OR_RETURN(squares, OrderedSquares(impl.job.group(), impl.state.flat->layout(),
                                                    impl.Reduced(), impl.reducer->reduced()));
      }
      DT_ASSIGN_OR_RETURN(verdict, impl.Vote(squares, false));
    }
    if (verdict->failed) {
      impl.Abandon();
      return absl::AbortedError(absl::StrFormat("rank %d failed in step %d; see its message",
                                                verdict->failed_rank, impl.state.step + 1));
    }
    DT_RETURN_IF_ERROR(impl.TakeUnused(*verdict));
    if (!verdict->finite) {
      DT_ASSIGN_OR_RETURN(culprit, FirstNonFinite(impl.job.group(), impl.state.flat->layout(),
                                                  impl.Reduced(), impl.reducer->reduced()));
    }
    if (absl::Status settled = impl.SettleBuffers(*verdict); !settled.ok()) {
      impl.FailTogether();
      return settled;
    }
    {
      const ScopedPhase phase("dtrain::update", impl.report.update_s);
      if (impl.broken = impl.DropGathered(); !impl.broken.ok()) {
        return impl.broken;
      }
      // A gather begins when all ranks are in it: with their shards updated.
      if (absl::Status applied = impl.Apply(*verdict); !applied.ok()) {
        impl.FailTogether();  // The others would wait for this rank's values.
        impl.broken = applied;
        impl.torn.Update(applied);
        return applied;
      }
    }
    counted = verdict->count;
    if (counted > 0) {  // Else nothing was seen of how gradients fit the scale.
      impl.state.loss_scale = plan::NextLossScale(impl.job.config().precision(),
                                                  impl.state.loss_scale, !verdict->finite);
    }
    if (impl.gather != nullptr) {
      const ScopedPhase phase("dtrain::wait", impl.report.exposed_comm_s);
      if (const absl::Status ended = impl.gather->End(); !ended.ok()) {
        impl.FailTogether();  // As above.
        impl.broken = impl.torn = ended;
        return ended;
      }
    }
    if (impl.state.live != nullptr && verdict->updates()) {
      const ScopedPhase phase("dtrain::wait", impl.report.exposed_comm_s);
      if (impl.broken = impl.state.live->Refresh(); !impl.broken.ok()) {
        return impl.broken;
      }
    }
    if (verdict->stop_signal != 0) {
      impl.job.AgreeToStop(verdict->stop_signal);
    }
    const StepReport finished = impl.Finish(*verdict);
    DT_RETURN_IF_ERROR(impl.AdoptOrders());
    impl.gemm_probe.AfterStep(finished.seconds);
    return finished;
  };
  auto result = [&]() -> absl::StatusOr<StepReport> {
    try {
      return impl.device_step != nullptr ? impl.UpdateOnDevice() : work();
    } catch (const std::exception& error) {  // Of a program's optimizer, or memory.
      impl.FailTogether();
      const absl::Status thrown = FromException("in the update", error);
      impl.torn.Update(thrown);
      return thrown;
    }
  }();
  if (result.ok()) {
    impl.witness.End(ForwardWitness::Pass::kForward);
    impl.witness.End(ForwardWitness::Pass::kBackward);
  }
  if (result.ok() && impl.device_step == nullptr) {  // There how it ended is not known yet.
    absl::Status ended;
    if (!result->skipped) {
      impl.EndSkipping();
    } else if (counted == 0) {
      ended = impl.AfterNoTarget(*result);
    } else {
      ended = impl.AfterSkip(*result, culprit, scale_before);
    }
    if (!ended.ok()) {
      result = std::move(ended);
    }
  }
  if (!result.ok()) {
    result = impl.Explained(result.status());
    impl.broken = result.status();
    impl.RefuseAfter(result.status());
  } else if (impl.transaction == nullptr) {
    impl.SeedNextForward();
  }
  return result;
}

// A failed step of one rank alone left no trace and may be taken again; then nothing is broken.
void Engine::Impl::RefuseAfter(const absl::Status& failure) {
  if (!broken.ok() && refusal.ok()) {
    refusal = absl::FailedPreconditionError(absl::StrFormat(
        "this engine cannot go on after the step that failed before (%s): end the program on all "
        "ranks and start it again; it resumes from its last checkpoint",
        failure.message()));
  }
}

// This rank's step failed before its reductions: the others wait in theirs. Ending the group is the
// only honest way until a step can be recovered on all ranks together.
void Engine::Impl::FailTogether() {
  if (job.world_size() > 1) {
    const std::string reason =
        absl::StrFormat("step %d failed on rank %d", state.step + 1, job.rank());
    job.group().Abort(reason);
    if (job.state().device_group != nullptr) {
      job.state().device_group->Abort(reason);
    }
    for (LiveParameters* const live : state.lives()) {
      live->Abort(reason);
    }
    broken = absl::AbortedError(reason);
  }
}

void Engine::Impl::FailStep(const absl::Status& failure) {
  // The others have started theirs too; an abort would leave weights of two steps.
  SettleGathers().IgnoreError();
  FailTogether();
  RefuseAfter(failure);
}

absl::StatusOr<StepReport> Engine::RunStep(absl::FunctionRef<absl::StatusOr<int64_t>()> load,
                                           absl::FunctionRef<Loss()> forward,
                                           absl::FunctionRef<std::optional<GraphInputs>()> inputs,
                                           Tracked* data) {
  Impl& impl = *impl_;
  DT_RETURN_IF_ERROR(impl.CheckIdle());
  impl.DropLeftGradients();
  impl.Begin();
  if (impl.first_reads != nullptr) {
    impl.first_reads->Restart();
  }
  StepTransaction transaction(impl.state.flat->module_buffers(), data);
  impl.transaction = &transaction;
  const absl::Cleanup over = [&impl] { impl.transaction = nullptr; };
  const int64_t accumulation = impl.job.config().gradient_accumulation_steps();
  const auto micro_steps = [&]() -> absl::Status {
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      BackwardOptions options{.last_micro_batch = micro + 1 == accumulation};
      {
        impl.job.Beat("data", impl.state.step);
        const ScopedPhase phase("dtrain::data", impl.report.data_s);
        try {
          DT_ASSIGN_OR_RETURN(options.samples, load());
        } catch (const std::exception& error) {
          return FromException("in the data source", error);
        }
      }
      impl.NoteFirstForward();
      // Behind the data source, whose draws are the program's own.
      const ScopedSeed numbers(impl.SeedOf(MicroBatchOf::kTraining, micro));
      std::optional<Loss> loss;
      try {
        impl.job.Beat("forward", impl.state.step);
        impl.witness.Begin(ForwardWitness::Pass::kForward);
        DT_ASSIGN_OR_RETURN(const bool taken, impl.MicroStepByGraph(forward, inputs, options));
        if (taken) {
          continue;
        }
        const ScopedPhase phase("dtrain::forward", impl.report.forward_s);
        const int64_t before = BytesInUse(impl.device());
        impl.MarkPhase(&StepNumbers::forward_s);
        loss = forward();
        impl.NoteActivations(BytesInUse(impl.device()) - before);
      } catch (const std::exception& error) {
        return FromException("in the loss function", error, impl.witness.Describe(error));
      }
      impl.MoveWaited(impl.report.forward_s);
      DT_RETURN_IF_ERROR(impl.BackgroundStatus());
      impl.job.Beat("backward", impl.state.step);
      const absl::Status backward = impl.Backward(*loss, options);
      impl.MoveWaited(impl.report.backward_s);
      DT_RETURN_IF_ERROR(backward);
    }
    return absl::OkStatus();
  };
  absl::Status status = micro_steps();
  if (status.ok()) {
    impl.job.Beat("update", impl.state.step);
    auto report = Update();
    if (report.ok()) {
      return report;
    }
    status = report.status();
  } else {
    status = impl.Explained(status);
    impl.FailStep(status);
  }
  impl.Abandon();
  impl.DropAllGathered().IgnoreError();  // The step's own error says more.
  DT_RETURN_IF_ERROR(transaction.Rollback());
  return status;
}

}  // namespace dtrain
