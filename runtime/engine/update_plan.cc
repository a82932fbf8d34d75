#include "runtime/engine/update_plan.h"

#include <algorithm>
#include <utility>

#include "base/numeric/prng.h"
#include "base/status.h"
#include "runtime/plan/optimizer/lr_schedule.h"

namespace dtrain {

UpdatePlan::UpdatePlan(Job& job, EngineState& state, SettledSettings engine, UpdateGroups groups)
    : job_(job),
      state_(state),
      engine_(std::move(engine)),
      groups_(std::move(groups)),
      unused_(job.group(), state.flat->layout(), job.config().optimizer().skip_unused) {
  if (job.config().optimizer().skip_unused) {
    state.progress.missed.resize(state.flat->layout().entries().size());
  }
}

void UpdatePlan::AddBucket(const plan::OwnedRange& owned) {
  pieces_.push_back(UpdatePieces(groups_, owned));
}

absl::Status UpdatePlan::TakeUnused(const StepVerdict& verdict) {
  DT_RETURN_IF_ERROR(unused_.Agree(verdict.compares_unused, state_.progress.step + 1));
  ChoosePieces();
  return absl::OkStatus();
}

std::vector<uint8_t> UpdatePlan::left_out() const {
  return skips() ? unused_.all_unused() : std::vector<uint8_t>();
}

void UpdatePlan::Replay(std::vector<uint8_t> left_out) {
  unused_.Replay(std::move(left_out));
  ChoosePieces();
}

void UpdatePlan::ChoosePieces() {
  used_pieces_.clear();
  if (skips()) {
    used_pieces_ = pieces_;
    for (std::vector<UpdatePiece>& bucket : used_pieces_) {
      std::erase_if(bucket, [this](const UpdatePiece& piece) {
        return unused_.unused(static_cast<size_t>(piece.entry));
      });
    }
  }
}

const std::vector<StateChunk>& UpdatePlan::Chunks(const UpdateRule& rule, Cut cut) {
  if (skips() || !chunks_are_of_all_) {
    BucketPieces traveling = pieces();
    for (std::vector<UpdatePiece>& bucket : traveling) {
      std::erase_if(bucket, [&](const UpdatePiece& piece) {
        return state_.flat->dtype() != DType::kFloat16 &&  // An update rounds fp16 from its master.
               !rule.updates(settings()[static_cast<size_t>(piece.settings)]);
      });
    }
    chunks_ = cut(traveling);
    chunks_are_of_all_ = !skips();
  }
  return chunks_;
}

double UpdatePlan::learning_rate() const {
  return LearningRateAt(job_.config(), engine_, state_.options, state_.progress.updates);
}

UpdateStep UpdatePlan::StepOf(double gradient_scale) const {
  const Config& config = job_.config();
  UpdateStep step{.update = state_.progress.updates + 1,
                  .gradient_scale = gradient_scale,
                  .gradient_limit = config.gradient_clipping_value(),
                  .settings = settings()};
  if (config.stochastic_rounding()) {
    constexpr uint64_t kRoundingStream = 0x726f756e64696e67;  // Its bits are no other stream's.
    step.rounding = {.seed = MixBits(kRoundingStream ^ static_cast<uint64_t>(config.seed())),
                     .offset = static_cast<uint64_t>(step.update)};
  }
  for (size_t i = 0; i < state_.progress.missed.size();
       ++i) {  // Then each parameter has its settings.
    step.settings[i].missed = state_.progress.missed[i];
  }
  // The step's agreement has refused a factor that is none.
  const double factor = LrFactorAt(state_.options, state_.progress.updates).value_or(1);
  for (ParamSettings& group : step.settings) {
    group.lr = factor * plan::GroupLrAt(config.scheduler(), engine_.lr_of_run, group.lr,
                                        state_.progress.updates);
    const plan::Betas betas =
        plan::BetasAt(config.scheduler(), {group.beta1, group.beta2}, state_.progress.updates);
    group.beta1 = betas.first;
    group.beta2 = betas.second;
  }
  return step;
}

void UpdatePlan::Count() {
  ++state_.progress.updates;
  for (size_t i = 0; skips() && i < state_.progress.missed.size(); ++i) {
    state_.progress.missed[i] += unused_.unused(i) ? 1 : 0;
  }
}

double LossFactor(const Config& config, const EngineState& state) {
  const double scale = state.progress.loss_scale.scale / config.gradient_predivision();
  return state.progress.loss_unit > 0 ? scale / state.progress.loss_unit : scale;
}

double ToMean(const Config& config, const EngineState& state, int64_t count) {
  return count > 0 ? 1.0 / (static_cast<double>(count) * LossFactor(config, state)) : 0.0;
}

}  // namespace dtrain
