// What makes the weights whole behind the step, and the order in which that is done.
#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <numeric>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/cleanup/cleanup.h"
#include "base/status.h"
#include "runtime/engine/engine_impl.h"
#include "runtime/job/exception_status.h"
#include "runtime/plan/layout/need_order.h"

namespace dtrain {

bool Engine::Impl::GathersBehindStep() const {
  const Config& config = job.config();
  if (!config.Find("zero_optimization.overlap_param_gather")->get<bool>() || !device().is_host() ||
      job.world_size() == 1) {
    return false;
  }
  if (config.zero_stage() > 0) {
    return config.zero_stage() < 3;
  }
  // Updates run bucket by bucket, in a thread of the engine's, of sums that are gathered as they
  // are: not rules that look at whole tensors, code of the program's, or gradients that travel in
  // another form.
  const OptimizerConfig::Kind kind = config.optimizer().kind;
  return kind != OptimizerConfig::Kind::kLamb && kind != OptimizerConfig::Kind::kMuon &&
         state.options.optimizer == nullptr &&
         CompressionOf(config).kind == comm::Compression::kNone &&
         WireOf(config) == comm::Wire::kSameAsBuffer;
}

void Engine::Impl::UpdateBehindStep(const UpdateStep& step, const ReducedGradient& gradient) {
  const auto pieces = [this](int bucket) -> absl::Span<const UpdatePiece> {
    return StepPieces()[static_cast<size_t>(bucket)];
  };
  const auto shared_step = std::make_shared<const UpdateStep>(step);
  for (const int bucket : update_order) {  // First, so that the link has something to do.
    if (!sharded_gradients->is_whole(bucket)) {
      gather->StartGradients(bucket, [this, shared_step, gradient, mine = pieces(bucket)] {
        UpdatePiecesBy(*rule, *shared_step, state, gradient, mine);
      });
    }
  }
  for (const int bucket : update_order) {
    if (sharded_gradients->is_whole(bucket)) {
      UpdatePiecesBy(*rule, step, state, gradient, pieces(bucket));
    }
  }
}

ReducedRanges Engine::Impl::Reduced() const {
  return gradient_shards != nullptr ? ReducedRanges{gradient_owned, true}
                                    : ReducedRanges{state.owned, state.shards != nullptr};
}

// After it all weights are there, or the engine is broken.
absl::Status Engine::Impl::SettleGathers() {
  if (gather == nullptr || device_step != nullptr) {
    return absl::OkStatus();
  }
  torn.Update(gather->Wait());
  broken.Update(torn);
  return torn;
}

absl::Status Engine::WithParameters(absl::FunctionRef<void()> function) {
  const at::NoGradGuard no_grad;
  DT_RETURN_IF_ERROR(impl_->CheckIdle());
  DT_RETURN_IF_ERROR(impl_->SettleGathers());
  impl_->DropWeightCodes();  // The function may write by any means.
  impl_->with_parameters = true;
  const absl::Cleanup over = [this] { impl_->with_parameters = false; };
  try {
    if (impl_->state.frozen != nullptr) {
      absl::Status others;
      absl::Status status = impl_->state.frozen->live->WithAll(
          [&] { others = impl_->state.live->WithAll(function); });
      status.Update(others);
      return status;
    }
    if (impl_->state.live != nullptr) {
      return impl_->state.live->WithAll(function);
    }
    function();
  } catch (const std::exception& error) {
    return FromException("in WithParameters", error);
  }
  return absl::OkStatus();
}

double Engine::Impl::TakeWaitedSeconds() {
  double seconds = gather != nullptr ? gather->TakeWaitedSeconds() : 0;
  for (LiveParameters* const live : state.lives()) {
    seconds += live->TakeWaitedSeconds();
  }
  return seconds;
}

// Waiting for weights is no computing.
void Engine::Impl::MoveWaited(double& phase_s) {
  const double seconds = TakeWaitedSeconds();
  phase_s -= seconds;
  report.exposed_comm_s += seconds;
}

// Before a step's first backward. What forward did not read is waited for: no other waits are
// needed until the update.
absl::Status Engine::Impl::EndFirstForward() {
  if (first_reads != nullptr) {
    first_reads->Stop();
  }
  absl::Status settled = SettleGathers();
  report.exposed_comm_s += TakeWaitedSeconds();
  return settled;
}

void Engine::Impl::UseUpdateOrder(std::vector<int> order) {
  update_order = std::move(order);
  update_chunks = ChunksOf(update_pieces);
}

std::vector<StateChunk> Engine::Impl::ChunksOf(std::vector<std::vector<UpdatePiece>> lists) const {
  if (stream == nullptr && exchange == nullptr) {
    return {};
  }
  for (std::vector<UpdatePiece>& bucket : lists) {
    std::erase_if(bucket, [this](const UpdatePiece& piece) {
      return state.flat->dtype() != DType::kFloat16 &&  // An update rounds fp16 from its master.
             !rule->updates(settings[static_cast<size_t>(piece.settings)]);
    });
  }
  std::vector<StateChunk> chunks = exchange != nullptr ? exchange->Cut(lists) : stream->Cut(lists);
  std::vector<size_t> place(update_order.size());
  for (size_t i = 0; i < update_order.size(); ++i) {
    place[static_cast<size_t>(update_order[i])] = i;
  }
  std::stable_sort(chunks.begin(), chunks.end(), [&](const StateChunk& a, const StateChunk& b) {
    return place[static_cast<size_t>(a.bucket)] < place[static_cast<size_t>(b.bucket)];
  });
  return chunks;
}

// Collective, after each step: what the first one showed decides in which order buckets are
// reduced, updated and gathered, on all ranks as rank 0 saw it.
absl::Status Engine::Impl::AdoptOrders() {
  if (first_reads != nullptr && !need_order_known) {
    std::vector<int> order =
        plan::NeedOrder(static_cast<int>(update_pieces.size()), first_reads->order());
    DT_ASSIGN_OR_RETURN(
        order, RankZeroOrder(job.group(), std::move(order), update_pieces.size(), "need order"));
    need_order_known = true;
    UseUpdateOrder(std::move(order));
  }
  return reducer->AdoptReadinessOrder(job.group(), update_order);
}

}  // namespace dtrain
