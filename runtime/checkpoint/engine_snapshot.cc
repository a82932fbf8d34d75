#include "runtime/checkpoint/engine_snapshot.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/json.h"
#include "base/status.h"
#include "kernels/optimizer/step_verdict.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/checkpoint/restore/shared_ranges.h"
#include "runtime/checkpoint/restore/stored_state.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/dtypes.h"

namespace dtrain {
namespace {

Json RangesJson(absl::Span<const plan::OwnedRange> ranges) {
  Json json = Json::array();
  for (const plan::OwnedRange& range : ranges) {
    json.push_back({range.flat.begin, range.flat.end});
  }
  return json;
}

Json LossScaleJson(const TrainingProgress& progress) {
  const plan::LossScale& scale = progress.loss_scale;
  return {{"scale", scale.scale},
          {"hysteresis", scale.hysteresis},
          {"steps", scale.steps},
          {"last_overflow", scale.last_overflow},
          {"unit", progress.loss_unit}};
}

// The record of an engine. `progress`: at the moment of the snapshot.
Json EngineJson(const EngineState& state, const TrainingProgress& progress) {
  return {{"optimizer", state.optimizer.name},
          {"step", progress.step},
          {"updates", progress.updates},
          {"skipped", progress.skipped},
          {"total_elements", state.flat->layout().total_elements()},
          {"loss_scale", LossScaleJson(progress)}};
}

// The random state of a snapshot, whose `bytes` are made later.
struct SavedRng {
  const CpuRngSnapshot saved;
  std::vector<std::byte> bytes = std::vector<std::byte>(kCpuRngBytes);
};

// The process has one.
void AddRng(EngineSnapshot& snapshot) {
  const auto rng = std::make_shared<SavedRng>();
  snapshot.source.state.push_back(
      {{kStoredRng, DType::kUInt8, {static_cast<int64_t>(rng->bytes.size())}}, rng->bytes});
  if (const at::Tensor& device_rng = rng->saved.device_state(); device_rng.defined()) {
    snapshot.keep.push_back(device_rng);
    snapshot.source.state.push_back(
        {{kStoredDeviceRng, DType::kUInt8, {device_rng.numel()}}, BytesOf(device_rng)});
  }
  snapshot.source.complete.emplace_back([rng](checkpoint::SpanSource&) {
    const at::Tensor state = rng->saved.CpuState();
    DT_CHECK(state.nbytes() == rng->bytes.size()) << "a generator's state has another size";
    std::memcpy(rng->bytes.data(), state.const_data_ptr(), rng->bytes.size());
  });
}

// Adds this rank's part of the states that updates change. A part in the host's memory is not made
// by narrow(), whose way through LibTorch takes longer than all else here.
void AddUpdateState(const EngineState& state, absl::Span<const plan::OwnedRange> stored,
                    const std::string& prefix, EngineSnapshot& snapshot) {
  const int64_t begin = stored.empty() ? 0 : stored[0].local;
  const int64_t elements = ElementsOf(stored);
  for (const auto& [name, tensor] : UpdateState(state)) {
    const bool on_device = snapshot.Leaves(tensor);
    const bool stays = on_device || tensor.is_cpu();
    const auto width = static_cast<size_t>(tensor.itemsize());
    snapshot.source.state.push_back(
        {{prefix + name, StoredStateType(tensor), {elements}},
         stays ? BytesOf(tensor).subspan(static_cast<size_t>(begin) * width,
                                         static_cast<size_t>(elements) * width)
               : BytesOf(OnHost(tensor.narrow(0, begin, elements), snapshot)),
         stays ? checkpoint::BytesStay::kUntilUpdate : checkpoint::BytesStay::kWithSnapshot,
         on_device});
  }
}

// Whether the host's memory holds what an update changes: states that are offloaded, which the
// device may still be writing.
bool HoldsFarStates(const checkpoint::SpanSource& source) {
  const auto is_far = [](const checkpoint::NamedTensor& tensor) {
    return tensor.stay == checkpoint::BytesStay::kUntilUpdate && !tensor.on_device;
  };
  return std::any_of(source.model.begin(), source.model.end(), is_far) ||
         std::any_of(source.state.begin(), source.state.end(), is_far);
}

absl::Status AddOwnBuffers(const EngineState& state, const RankPlace& place,
                           const std::string& prefix, EngineSnapshot& snapshot) {
  for (const auto& [name, tensor] : OwnBuffers(state, place)) {
    const bool on_device = snapshot.Leaves(tensor);
    const at::Tensor kept = on_device ? tensor : OnHost(tensor, snapshot);
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(kept.scalar_type()));
    snapshot.keep.push_back(kept);
    snapshot.source.state.push_back({{prefix + name, dtype, kept.sizes().vec()},
                                     BytesOf(kept),
                                     StayOf(tensor, kept, checkpoint::BytesStay::kUntilStep),
                                     on_device});
  }
  return absl::OkStatus();
}

// Fills what a checkpoint has once, from its first engine. Only rank 0's files are written.
void CompleteJob(const EngineState& state, const TrainingProgress& progress, Json ranges, int rank,
                 checkpoint::SpanSource& source) {
  if (rank == 0) {
    source.model_files = state.options.model_files;
  }
  if (rank == 0 && !state.options.model_config.is_null()) {
    source.model_files.emplace(source.model_files.begin(), "config.json",
                               DumpJson(state.options.model_config, 2) + "\n");
  }
  source.job.zero_stage = state.zero_stage;
  source.job.layout_hash = LayoutHash(state);
  source.job.engine = EngineJson(state, progress);
  source.rank["ranges"] = std::move(ranges);
}

// Fills the records of another engine, which stand below "engines".
void CompleteOther(const EngineState& state, const TrainingProgress& progress, Json ranges,
                   const std::string& name, checkpoint::SpanSource& source) {
  Json& record = source.job.engine["engines"][name] = EngineJson(state, progress);
  record["layout_hash"] = LayoutHash(state);
  source.rank["engines"][name] = {{"ranges", std::move(ranges)}};
}

}  // namespace

plan::FlatRange SliceOf(int64_t total_elements, RankPlace place) {
  constexpr int64_t kAlign = plan::ParamLayout::kAlignElements;
  const int64_t blocks = (total_elements + kAlign - 1) / kAlign;
  const auto cut = [&](int64_t rank) {
    return std::min(total_elements, blocks * rank / place.world_size * kAlign);
  };
  return {cut(place.rank), cut(place.rank + 1)};
}

std::vector<plan::OwnedRange> StoredRanges(const EngineState& state, RankPlace place) {
  if (state.shards != nullptr) {
    return state.owned;
  }
  const plan::FlatRange slice = SliceOf(state.flat->layout().total_elements(), place);
  return {{slice, slice.begin}};
}

std::string LayoutHash(const plan::ParamLayout& layout) {
  return absl::StrFormat("%016x", layout.hash());
}
std::string LayoutHash(const EngineState& state) { return LayoutHash(state.flat->layout()); }

EngineSnapshots::EngineSnapshots(EngineState& state, RankPlace place, const std::string& name)
    : state_(state),
      place_(place),
      name_(name),
      model_(std::make_unique<WrittenModel>(state, std::move(place), StoredPrefix(name))) {}
EngineSnapshots::EngineSnapshots(EngineSnapshots&& other) noexcept = default;
EngineSnapshots::~EngineSnapshots() = default;

absl::StatusOr<EngineSnapshots::ProgressThen> EngineSnapshots::Progress(bool may_be_late) {
  const Device& device = state_.flat->device();
  constexpr size_t kBytes = sizeof(kernels::StepVerdictNumbers);
  if (may_be_late && verdict_ == nullptr) {
    absl::StatusOr<std::unique_ptr<PinnedMemory>> memory = PinnedMemory::Create(device, kBytes);
    may_be_late = memory.ok();  // A rank that failed here would be missed in the others' gathers.
    verdict_ = memory.ok() ? *std::move(memory) : nullptr;
  }
  const std::optional<UnsettledStep> unsettled = state_.last_step.settle(may_be_late);
  DT_RETURN_IF_ERROR(state_.last_step.status);
  if (!unsettled.has_value()) {
    return ProgressThen([progress = state_.progress] { return progress; });
  }
  DT_RETURN_IF_ERROR(device.Copy(verdict_->data(), unsettled->verdict, kBytes));
  return ProgressThen(
      [step = *unsettled, copy = verdict_->data()]() -> absl::StatusOr<TrainingProgress> {
        DT_RETURN_IF_ERROR(step.health());
        kernels::StepVerdictNumbers verdict;
        std::memcpy(&verdict, copy, sizeof(verdict));
        return step.progress(verdict.skip != 0);
      });
}

absl::Status EngineSnapshots::AddTo(EngineSnapshot& snapshot) {
  const at::NoGradGuard no_grad;
  const std::string prefix = StoredPrefix(name_);
  DT_ASSIGN_OR_RETURN(ProgressThen progress, Progress(snapshot.gpu.has_value()));
  DT_RETURN_IF_ERROR(model_->AddTo(snapshot));
  std::vector<plan::OwnedRange> stored = StoredRanges(state_, place_);
  AddUpdateState(state_, stored, prefix, snapshot);
  if (!state_.progress.missed.empty()) {
    const at::Tensor missed = MissedUpdates(state_);
    snapshot.keep.push_back(missed);
    snapshot.source.state.push_back(
        {{prefix + kStoredMissed, DType::kInt64, {missed.numel()}}, BytesOf(missed)});
  }
  DT_RETURN_IF_ERROR(AddOwnBuffers(state_, place_, prefix, snapshot));
  if (name_.empty()) {
    AddRng(snapshot);
  }
  if (const Device& device = state_.flat->device();
      !device.is_host() && (!snapshot.gpu.has_value() || HoldsFarStates(snapshot.source))) {
    DT_RETURN_IF_ERROR(device.Synchronize());
  }
  snapshot.source.complete.emplace_back(
      [&state = state_, name = name_, rank = place_.rank, progress = std::move(progress),
       stored = std::move(stored)](checkpoint::SpanSource& source) {
        const absl::StatusOr<TrainingProgress> then = progress();
        source.status.Update(then.status());
        if (!then.ok()) {
          return;
        }
        if (name.empty()) {
          CompleteJob(state, *then, RangesJson(stored), rank, source);
        } else {
          CompleteOther(state, *then, RangesJson(stored), name, source);
        }
      });
  return absl::OkStatus();
}

void AddJobRecords(JobRecords records, checkpoint::SpanSource& source) {
  source.complete.emplace_back([records = std::move(records)](checkpoint::SpanSource& whole) {
    whole.job.engine["name"] = records.model;
    if (!records.metrics.empty()) {
      whole.job.engine["metrics"] = records.metrics;
    }
    if (!records.accepted_changes.empty()) {
      whole.job.engine["accepted_changes"] = records.accepted_changes;
    }
    whole.rank["tracked"] = records.tracked;
    if (!records.host.empty()) {
      whole.rank["host"] = records.host;
    }
    whole.job.user = records.tracked;
  });
}

uint64_t StoredBytes(const EngineState& state) {
  uint64_t bytes = 0;
  for (const StoredTensor& item : StoredTensors(state)) {
    bytes += item.tensor.nbytes();
  }
  for (const auto& [name, tensor] : UpdateState(state)) {
    bytes += static_cast<uint64_t>(state.flat->layout().total_elements()) * tensor.itemsize();
  }
  return bytes;
}

}  // namespace dtrain
