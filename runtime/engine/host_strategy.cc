#include "runtime/engine/host_strategy.h"

#include <cmath>
#include <utility>

#include "base/status.h"
#include "kernels/optimizer/grad_norm.h"
#include "runtime/engine/live_passes.h"
#include "runtime/gradients/reduced_gradient.h"
#include "runtime/model/phase.h"
#include "runtime/plan/optimizer/loss_scale.h"

namespace dtrain {

HostStrategy::HostStrategy(Job& job, EngineState& state, UpdatePlan& plan, GradientSync& gradients,
                           Parts parts)
    : job_(job),
      state_(state),
      plan_(plan),
      gradients_(gradients),
      parts_(std::move(parts)),
      skipped_(job.config(), state) {}

absl::Status HostStrategy::Begin() {
  loss_sum_ = 0;
  return absl::OkStatus();
}

absl::Status HostStrategy::AddLoss(const at::Tensor& sum) {
  loss_sum_ += sum.item<double>();
  return absl::OkStatus();
}

absl::Status HostStrategy::Fill(StepVote& vote) {
  DT_ASSIGN_OR_RETURN(GradientSquares squares, gradients_.Wait());
  if (job_.config().deterministic()) {
    DT_ASSIGN_OR_RETURN(squares, OrderedSquares(job_.group(), state_.flat->layout(), Reduced(),
                                                gradients_.reduced()));
  }
  vote.loss_sum = loss_sum_;
  vote.sum_of_squares = squares.sum;
  vote.of_shard = squares.of_shard ? 1 : 0;
  return absl::OkStatus();
}

absl::Status HostStrategy::Prepare(const StepVerdict& verdict) {
  if (!verdict.finite) {
    DT_ASSIGN_OR_RETURN(culprit_, FirstNonFinite(job_.group(), state_.flat->layout(), Reduced(),
                                                 gradients_.reduced()));
  }
  return DropGathered(state_);
}

absl::Status HostStrategy::Update(const StepVerdict& verdict, StepReport& report) {
  {
    const ScopedPhase phase("dtrain::update", report.update_s);
    DT_RETURN_IF_ERROR(Apply(verdict, report));
  }
  scale_ = state_.progress.loss_scale;
  if (verdict.count > 0) {  // Else nothing was seen of how gradients fit the scale.
    state_.progress.loss_scale =
        plan::NextLossScale(job_.config().precision(), scale_, !verdict.finite);
  }
  if (parts_.gather != nullptr) {
    const ScopedPhase phase("dtrain::wait", report.exposed_comm_s);
    return parts_.gather->Wait();
  }
  if (state_.live != nullptr && verdict.updates()) {
    const ScopedPhase phase("dtrain::wait", report.exposed_comm_s);
    return state_.live->Refresh();
  }
  return absl::OkStatus();
}

absl::Status HostStrategy::Apply(const StepVerdict& verdict, StepReport& report) {
  const Config& config = job_.config();
  const double to_mean = ToMean(config, state_, verdict.count);
  report.grad_norm = std::sqrt(verdict.sum_of_squares) * to_mean;
  report.loss_scale = state_.progress.loss_scale.scale;
  report.learning_rate = plan_.learning_rate();
  if (!verdict.updates()) {
    report.skipped = true;
    ++state_.progress.skipped;
    return absl::OkStatus();
  }
  const UpdateStep step = plan_.StepOf(
      to_mean * kernels::ClipFactor(report.grad_norm, plan_.engine().gradient_clipping));
  const ReducedGradient gradient = gradients_.reduced();
  DT_RETURN_IF_ERROR(parts_.rule->Prepare(
      {job_.group(), state_, gradient, plan_.pieces(), step, parts_.stream.get()}));
  if (parts_.stream != nullptr) {
    DT_RETURN_IF_ERROR(ApplyFromFar(step, gradient));
  } else {
    for (size_t bucket = 0; bucket < plan_.buckets(); ++bucket) {
      UpdatePiecesBy(*parts_.rule, step, state_, gradient, plan_.pieces()[bucket]);
      if (parts_.gather != nullptr) {
        parts_.gather->Start(static_cast<int>(bucket));
      }
    }
  }
  plan_.Count();
  return absl::OkStatus();
}

absl::Status HostStrategy::ApplyFromFar(const UpdateStep& step, const ReducedGradient& gradient) {
  const std::vector<StateChunk>& chunks = plan_.Chunks(
      *parts_.rule, [this](const BucketPieces& pieces) { return parts_.stream->Cut(pieces); });
  return parts_.stream->Run(
      chunks, [&](const StateChunk& chunk, absl::Span<std::byte* const> near) {
        for (const UpdatePiece& piece : chunk.pieces) {
          UpdatePieceInParts(state_, *parts_.rule, step, piece,
                             NearMemoryOf(state_, gradient, piece, chunk.local, near));
        }
        if (chunk.ends_bucket && parts_.gather != nullptr) {
          parts_.gather->Start(chunk.bucket);
        }
      });
}

absl::Status HostStrategy::End(const StepVerdict& verdict, StepReport& report) {
  if (verdict.updates()) {
    skipped_.End();
    return absl::OkStatus();
  }
  return OnAllRanks(verdict.count == 0 ? skipped_.NoTarget(report)
                                       : skipped_.NonFinite(report, culprit_, scale_));
}

}  // namespace dtrain
