#include "dtrain/engine.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/group.h"
#include "kernels/grad_norm.h"
#include "runtime/engine/adamw_update.h"
#include "runtime/engine/agreement.h"
#include "runtime/engine/engine_state.h"
#include "runtime/engine/gemm_probe.h"
#include "runtime/engine/gradient_reducer.h"
#include "runtime/engine/model_sync.h"
#include "runtime/engine/ordered_squares.h"
#include "runtime/engine/stopwatch.h"
#include "runtime/engine/torch_pool.h"
#include "runtime/engine/transaction.h"
#include "runtime/plan/lr_schedule.h"
#include "runtime/plan/shard_plan.h"
#include "runtime/shard/parameter_gather.h"
#include "runtime/shard/partitioned_gradients.h"
#include "runtime/shard/sharded_gradients.h"
#include "torch/nn/module.h"

namespace dtrain {
namespace {

constexpr int64_t kGemmProbeStep = 2;   // After the caches are warm, before people look.
constexpr int kNonFiniteStepsMax = 20;  // In a row; then the run is stopped as diverged.
constexpr int64_t kMinBucketElements = 1 << 18;
constexpr int64_t kBucketsWanted = 6;  // So that most of the reduction hides behind backward.

// reduce_bucket_size is the largest bucket; a model smaller than it is cut all the same.
int64_t BucketElements(const Config& config, int64_t total) {
  const int64_t wanted = std::max(kMinBucketElements, total / kBucketsWanted);
  return config.overlap_comm() ? std::min(config.reduce_bucket_elements(), wanted)
                               : config.reduce_bucket_elements();
}

plan::ShardOptions ShardOptionsOf(const Config& config, int world_size) {
  return {.world_size = world_size,
          .align_elements =
              config.deterministic() ? kernels::kNormBlock : plan::ParamLayout::kAlignElements};
}

FlatOptions FlatOptionsOf(const Config& config, int world_size) {
  if (config.zero_stage() == 0) {
    return {};
  }
  return {.pad_to_multiple = ShardOptionsOf(config, world_size).unit(),
          .with_gradients = config.zero_stage() == 1,
          .values_symmetric = true};
}

comm::Wire WireOf(const Config& config) {
  const std::string& name = config.comm_wire_dtype();
  return name == "bf16"   ? comm::Wire::kBFloat16
         : name == "fp16" ? comm::Wire::kFloat16
                          : comm::Wire::kSameAsBuffer;
}

comm::CompressionOptions CompressionOf(const Config& config) {
  const CompressionConfig& from = config.comm_compression();
  comm::CompressionOptions options;
  options.kind = from.type == "powersgd" ? comm::Compression::kPowerSgd
                 : from.type == "int8"   ? comm::Compression::kInt8
                                         : comm::Compression::kNone;
  options.wire = WireOf(config);
  options.rank = static_cast<int>(from.rank);
  options.error_feedback = from.error_feedback;
  options.start_step = from.start_step;
  options.elements_min = static_cast<size_t>(from.min_elements);
  options.seed = static_cast<uint64_t>(config.seed());
  return options;
}

absl::Status FromException(const char* where, const std::exception& error) {
  const std::string text = error.what();  // LibTorch appends a backtrace after the first line.
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s", where, text.substr(0, text.find('\n'))));
}

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

struct Engine::Impl {
  Job& job;
  torch::nn::Module& module;
  EngineState state;
  std::unique_ptr<GradientSync> reducer;
  std::unique_ptr<ParameterGather> gather;  // Null at stage 0.
  // What this rank updates, cut where it is gathered: one piece list a bucket, or one in all.
  std::vector<std::vector<UpdatePiece>> update_pieces;
  StepReport report;  // Of the step under way.
  double loss_sum = 0;
  int64_t count = 0;
  int64_t samples = 0;
  int64_t micro_batches = 0;
  bool reducing = false;  // The last micro-batch of this step has been through backward.
  int64_t step_start_nanos = 0;
  double gemm_rate = 0;
  int non_finite_in_a_row = 0;
  bool first_forward_noted = false;
  absl::Status broken;  // After an error inside Update there is no way on.

  Impl(Job& j, torch::nn::Module& m) : job(j), module(m) {}

  void Begin() {
    if (micro_batches == 0 && step_start_nanos == 0) {
      step_start_nanos = Clock::Real().MonotonicNanos();
      job.group().SetStep(state.step + 1);
      report = StepReport{};
    }
  }
  void Abandon() {
    reducer->Release();
    loss_sum = 0;
    count = 0;
    samples = 0;
    micro_batches = 0;
    reducing = false;
    step_start_nanos = 0;
  }
  absl::Status Backward(const Loss& loss, const BackwardOptions& options);
  absl::Status CreateSync();
  absl::StatusOr<StepVerdict> Vote(const GradientSquares& squares, bool failed);
  void Apply(const StepVerdict& verdict);
  StepReport Finish(const StepVerdict& verdict);
  void FailTogether();
  // Time to the first step is a number of its own: it is what a start costs.
  void NoteFirstForward() {
    if (!first_forward_noted) {
      first_forward_noted = true;
      job.metrics().LogEvent(EventKind::kEvent, {{"name", "first_forward"}});
    }
  }
};

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Job& job, torch::nn::Module& model,
                                                       EngineOptions options) {
  if (!job.config().optimizer().decoupled) {
    return absl::UnimplementedError(
        "optimizer.params.adam_w_mode false (L2 in the gradient) is not supported; remove it for "
        "AdamW's decoupled weight decay");
  }
  auto impl = std::make_unique<Impl>(job, model);
  EngineState& state = impl->state;
  state.options = std::move(options);
  state.zero_stage = job.config().zero_stage();
  DT_ASSIGN_OR_RETURN(state.flat,
                      FlatParameters::Create(model, FlatOptionsOf(job.config(), job.world_size())));
  DT_RETURN_IF_ERROR(CheckSameModel(job.group(), *state.flat));
  DT_RETURN_IF_ERROR(BroadcastModel(job.group(), *state.flat));
  if (state.options.flops_per_sample == 0) {
    state.options.flops_per_sample =
        6.0 * static_cast<double>(state.flat->layout().parameter_elements());
  }
  DT_RETURN_IF_ERROR(impl->CreateSync());
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

// What the ZeRO stage decides: who owns which moments, and how gradients and values travel.
absl::Status Engine::Impl::CreateSync() {
  const Config& config = job.config();
  const plan::ParamLayout& layout = state.flat->layout();
  const int64_t total = layout.total_elements();
  const int64_t bucket_elements = BucketElements(config, total);
  const comm::Wire wire = WireOf(config);
  const std::vector<DecayRange> decay = DecayRanges(layout, config.optimizer());
  int64_t moments = total;
  if (config.zero_stage() == 0) {
    state.owned = {{{0, total}, 0}};
    update_pieces = {UpdatePieces(decay, state.owned[0])};
    DT_ASSIGN_OR_RETURN(reducer, GradientReducer::Create(job.group(), *state.flat,
                                                         {.bucket_elements = bucket_elements,
                                                          .compression = CompressionOf(config)}));
  } else {
    if (config.comm_compression().type != "none") {
      return absl::UnimplementedError(
          absl::StrFormat("comm.compression.type \"%s\" at zero_optimization.stage %d is not "
                          "supported: set stage 0, "
                          "or \"none\"",
                          config.comm_compression().type, config.zero_stage()));
    }
    plan::ShardOptions options = ShardOptionsOf(config, job.world_size());
    options.buckets.bucket_elements = bucket_elements;
    DT_ASSIGN_OR_RETURN(plan::ShardPlan shards, plan::ShardPlan::Create(layout, options));
    state.shards = std::make_unique<plan::ShardPlan>(std::move(shards));
    state.owned = state.shards->owned(job.rank());
    for (size_t bucket = 0; bucket < state.shards->buckets().size(); ++bucket) {
      const auto part = state.shards->part(static_cast<int>(bucket), job.rank());
      update_pieces.push_back(UpdatePieces(decay, part));
    }
    moments = state.shards->shard_elements();
    DT_ASSIGN_OR_RETURN(gather, ParameterGather::Create(job.group(), *state.flat, *state.shards));
    if (config.zero_stage() == 1) {
      DT_ASSIGN_OR_RETURN(reducer,
                          ShardedGradients::Create(job.group(), *state.flat, *state.shards, wire));
    } else {
      DT_ASSIGN_OR_RETURN(
          reducer, PartitionedGradients::Create(job.group(), *state.flat, *state.shards, wire));
    }
  }
  state.exp_avg = at::zeros({moments}, at::TensorOptions(at::kFloat));
  state.exp_avg_sq = at::zeros({moments}, at::TensorOptions(at::kFloat));
  return absl::OkStatus();
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

int64_t Engine::step() const { return impl_->state.step; }
EngineState& Engine::state() { return impl_->state; }

absl::Status Engine::WithParameters(absl::FunctionRef<void()> function) {
  const at::NoGradGuard no_grad;
  try {
    function();
  } catch (const std::exception& error) {
    return FromException("in WithParameters", error);
  }
  return absl::OkStatus();
}

absl::Status Engine::Impl::Backward(const Loss& loss, const BackwardOptions& options) {
  DT_RETURN_IF_ERROR(broken);
  Begin();
  if (!loss.sum.defined() || loss.sum.numel() != 1 || !loss.sum.requires_grad()) {
    return absl::InvalidArgumentError(
        "the loss must be one number that depends on a trainable parameter");
  }
  if (loss.count < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the loss counts %d samples; allowed: 0 or more", loss.count));
  }
  if (reducing) {
    return absl::FailedPreconditionError(
        "Backward after the step's last micro-batch: call Update first, or pass last_micro_batch = "
        "false to all but the last");
  }
  reducing = options.last_micro_batch;
  reducer->BeginMicroBatch(state.step + 1, reducing);
  const ScopedSeconds time(report.backward_s);
  try {
    loss.sum.backward();
    loss_sum += loss.sum.item<double>();
  } catch (const std::exception& error) {
    return FromException("in backward", error);
  }
  count += loss.count;
  samples += options.samples > 0 ? options.samples : loss.count;
  ++micro_batches;
  return reducer->FinishBackward();
}

absl::Status Engine::Backward(const Loss& loss, BackwardOptions options) {
  return impl_->Backward(loss, options);
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
  return Agree(job.group(), vote);
}

void Engine::Impl::Apply(const StepVerdict& verdict) {
  const Config& config = job.config();
  const double inverse_count = verdict.count > 0 ? 1.0 / static_cast<double>(verdict.count) : 0.0;
  report.grad_norm = std::sqrt(verdict.sum_of_squares) * inverse_count;
  report.learning_rate = plan::LrAt(config.scheduler(), state.updates);
  if (!verdict.finite) {
    report.skipped = true;
    ++state.skipped;
    return;
  }
  double scale = inverse_count;
  if (const double limit = config.gradient_clipping(); limit > 0 && report.grad_norm > limit) {
    scale *= limit / (report.grad_norm + 1e-6);  // torch.nn.utils.clip_grad_norm_'s formula.
  }
  for (size_t i = 0; i < update_pieces.size(); ++i) {
    AdamWUpdate(state, reducer->reduced(), update_pieces[i], config.optimizer(),
                report.learning_rate, scale, state.updates + 1, TorchParallelFor);
    if (gather != nullptr) {
      gather->Start(static_cast<int>(i));
    }
  }
  ++state.updates;
}

StepReport Engine::Impl::Finish(const StepVerdict& verdict) {
  ++state.step;
  report.step = state.step;
  report.tokens = verdict.samples;
  report.loss = verdict.loss_sum / static_cast<double>(std::max<int64_t>(1, verdict.count));
  report.model_flops = state.options.flops_per_sample * static_cast<double>(samples);
  report.gemm_flops_per_s = gemm_rate;
  report.seconds = static_cast<double>(Clock::Real().MonotonicNanos() - step_start_nanos) * 1e-9;
  const StepReport finished = report;
  Abandon();  // Buckets and sums are free for the next step.
  return finished;
}

absl::StatusOr<StepReport> Engine::Update() {
  Impl& impl = *impl_;
  DT_RETURN_IF_ERROR(impl.broken);
  if (!impl.reducing) {
    return absl::FailedPreconditionError(
        "Update without a Backward of the last micro-batch before it (last_micro_batch = true)");
  }
  const auto work = [&]() -> absl::StatusOr<StepReport> {
    std::optional<StepVerdict> verdict;
    {
      const ScopedSeconds time(impl.report.exposed_comm_s);
      DT_ASSIGN_OR_RETURN(GradientSquares squares, impl.reducer->Wait());
      if (impl.job.config().deterministic()) {
        DT_ASSIGN_OR_RETURN(squares,
                            OrderedSquares(impl.job.group(), impl.state, impl.reducer->reduced()));
      }
      DT_ASSIGN_OR_RETURN(verdict, impl.Vote(squares, false));
    }
    if (verdict->failed) {
      impl.Abandon();
      return absl::AbortedError(absl::StrFormat("rank %d failed in step %d; see its message",
                                                verdict->failed_rank, impl.state.step + 1));
    }
    {
      const ScopedSeconds time(impl.report.update_s);
      impl.Apply(*verdict);
    }
    if (impl.gather != nullptr) {
      const ScopedSeconds time(impl.report.exposed_comm_s);
      if (impl.broken = impl.gather->Wait(); !impl.broken.ok()) {
        return impl.broken;  // Some values are of this step, some of the last.
      }
    }
    if (verdict->stop_signal != 0) {
      impl.job.AgreeToStop(verdict->stop_signal);
    }
    const StepReport finished = impl.Finish(*verdict);
    DT_RETURN_IF_ERROR(impl.reducer->AdoptReadinessOrder(impl.job.group()));
    if (impl.state.step == kGemmProbeStep) {
      impl.gemm_rate = MeasureGemmRate();
    }
    return finished;
  };
  auto result = work();
  if (!result.ok() && !absl::IsAborted(result.status())) {
    impl.broken = result.status();
  }
  if (result.ok() && result->skipped) {
    DT_LOG(Warning) << "step " << result->step << " skipped: the gradient is not finite (loss "
                    << result->loss << ")";
    if (++impl.non_finite_in_a_row >= kNonFiniteStepsMax) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%d steps in a row had a gradient that is not finite, up to step %d: lower the learning "
          "rate (optimizer.params.lr) or look at the data",
          kNonFiniteStepsMax, result->step));
    }
  } else if (result.ok()) {
    impl.non_finite_in_a_row = 0;
  }
  return result;
}

// This rank's step failed before its reductions: the others wait in theirs. Ending the group is the
// only honest way until a step can be recovered on all ranks together.
void Engine::Impl::FailTogether() {
  if (job.world_size() > 1) {
    job.group().Abort(absl::StrFormat("step %d failed on rank %d", state.step + 1, job.rank()));
    broken = absl::AbortedError("an earlier step failed");
  }
}

absl::StatusOr<StepReport> Engine::RunStep(absl::FunctionRef<absl::StatusOr<int64_t>()> load,
                                           absl::FunctionRef<Loss()> forward, Tracked* data) {
  Impl& impl = *impl_;
  DT_RETURN_IF_ERROR(impl.broken);
  impl.Begin();
  StepTransaction transaction(impl.state.flat->module_buffers(), data);
  const int64_t accumulation = impl.job.config().gradient_accumulation_steps();
  const auto micro_steps = [&]() -> absl::Status {
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      BackwardOptions options{.last_micro_batch = micro + 1 == accumulation};
      {
        impl.job.Beat("data", impl.state.step);
        const ScopedSeconds time(impl.report.data_s);
        DT_ASSIGN_OR_RETURN(options.samples, load());
      }
      impl.NoteFirstForward();
      std::optional<Loss> loss;
      try {
        impl.job.Beat("forward", impl.state.step);
        const ScopedSeconds time(impl.report.forward_s);
        loss = forward();
      } catch (const std::exception& error) {
        return FromException("in the loss function", error);
      }
      impl.job.Beat("backward", impl.state.step);
      DT_RETURN_IF_ERROR(impl.Backward(*loss, options));
    }
    return absl::OkStatus();
  };
  absl::Status status = micro_steps();
  if (status.ok()) {
    impl.job.Beat("update", impl.state.step);
    auto report = Update();
    if (report.ok()) {
      if (report->skipped) {
        transaction.RestoreBuffers();  // A bad batch must not stay in running statistics.
      }
      return report;
    }
    status = report.status();
  } else {
    impl.FailTogether();
  }
  impl.Abandon();
  DT_RETURN_IF_ERROR(transaction.Rollback());
  return status;
}

absl::StatusOr<double> Engine::RunEvaluation(absl::FunctionRef<absl::StatusOr<Loss>()> next) {
  Impl& impl = *impl_;
  DT_RETURN_IF_ERROR(impl.broken);
  impl.job.Beat("eval", impl.state.step);
  const at::NoGradGuard no_grad;
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
      const auto loss = next();
      failure = loss.status();
      if (loss.ok()) {
        vote.loss_sum += loss->sum.item<double>();
        vote.count += loss->count;
      }
    }
  } catch (const std::exception& error) {
    failure = FromException("in the loss function of an evaluation", error);
  }
  modes.Restore();
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
