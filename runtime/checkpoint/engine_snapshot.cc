#include "runtime/checkpoint/engine_snapshot.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/checkpoint/restore/shared_ranges.h"
#include "runtime/checkpoint/restore/stored_state.h"
#include "runtime/engine/transaction.h"
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

Json LossScaleJson(const EngineState& state) {
  const plan::LossScale& scale = state.progress.loss_scale;
  return {{"scale", scale.scale},
          {"hysteresis", scale.hysteresis},
          {"steps", scale.steps},
          {"last_overflow", scale.last_overflow},
          {"unit", state.progress.loss_unit}};
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

absl::StatusOr<EngineSnapshot> TakeSnapshot(const EngineState& state, RankPlace place,
                                            const std::string& engine) {
  const at::NoGradGuard no_grad;
  const std::string prefix = StoredPrefix(engine);
  EngineSnapshot snapshot;
  DT_RETURN_IF_ERROR(state.settled);
  DT_RETURN_IF_ERROR(AddModelTensors(state, place, prefix, snapshot));
  const std::vector<plan::OwnedRange> stored = StoredRanges(state, place);
  const int64_t elements = ElementsOf(stored);
  for (const auto& [name, tensor] : UpdateState(state)) {
    const at::Tensor part =
        OnHost(tensor.narrow(0, stored.empty() ? 0 : stored[0].local, elements), snapshot);
    snapshot.source.state.push_back({{prefix + name, StoredStateType(part), {elements}},
                                     BytesOf(part),
                                     StayOf(tensor, part, checkpoint::BytesStay::kUntilUpdate)});
  }
  if (!state.progress.missed.empty()) {
    const at::Tensor missed = MissedUpdates(state);
    snapshot.keep.push_back(missed);
    snapshot.source.state.push_back(
        {{prefix + kStoredMissed, DType::kInt64, {missed.numel()}}, BytesOf(missed)});
  }
  for (const auto& [name, tensor] : OwnBuffers(state, place)) {
    const at::Tensor kept = OnHost(tensor, snapshot);
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(kept.scalar_type()));
    snapshot.keep.push_back(kept);
    snapshot.source.state.push_back({{prefix + name, dtype, kept.sizes().vec()},
                                     BytesOf(kept),
                                     StayOf(tensor, kept, checkpoint::BytesStay::kUntilStep)});
  }
  if (engine.empty()) {  // The process has one.
    const at::Tensor rng = CpuRngState();
    snapshot.keep.push_back(rng);
    snapshot.source.state.push_back({{kStoredRng, DType::kUInt8, {rng.numel()}}, BytesOf(rng)});
    if (const at::Tensor device_rng = DeviceRngState(); device_rng.defined()) {
      snapshot.keep.push_back(device_rng);
      snapshot.source.state.push_back(
          {{kStoredDeviceRng, DType::kUInt8, {device_rng.numel()}}, BytesOf(device_rng)});
    }
  }
  if (!state.flat->device().is_host()) {
    DT_RETURN_IF_ERROR(state.flat->device().Synchronize());
  }
  if (engine.empty() && !state.options.model_config.is_null()) {
    snapshot.source.model_files.emplace_back("config.json",
                                             DumpJson(state.options.model_config, 2) + "\n");
  }
  if (engine.empty() && place.rank == 0) {
    snapshot.source.model_files.insert(snapshot.source.model_files.end(),
                                       state.options.model_files.begin(),
                                       state.options.model_files.end());
  }
  snapshot.source.job.zero_stage = state.zero_stage;
  snapshot.source.job.layout_hash = LayoutHash(state);
  snapshot.source.job.engine = {{"optimizer", state.optimizer.name},
                                {"step", state.progress.step},
                                {"updates", state.progress.updates},
                                {"skipped", state.progress.skipped},
                                {"total_elements", state.flat->layout().total_elements()},
                                {"loss_scale", LossScaleJson(state)}};
  snapshot.source.rank = {{"ranges", RangesJson(stored)}};
  return snapshot;
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

uint64_t LiveBytes(const EngineState& state, int world_size) {
  if (!state.flat->device().is_host()) {
    return 0;  // A snapshot has copies of what lies on a GPU.
  }
  uint64_t bytes = 0;
  for (const StoredTensor& item : StoredTensors(state)) {
    // Gathered weights are copies, and so are buffers and frozen weights.
    bytes += item.shared.has_value() || !item.is_updated ? 0 : item.tensor.nbytes();
  }
  for (const auto& [name, tensor] : UpdateState(state)) {
    bytes += static_cast<uint64_t>(state.flat->layout().total_elements()) * tensor.itemsize();
  }
  return bytes / static_cast<uint64_t>(world_size);
}

void Add(EngineSnapshot more, const std::string& name, EngineSnapshot& all) {
  const auto append = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(more.source.model, all.source.model);
  append(more.source.state, all.source.state);
  append(more.keep, all.keep);
  Json& record = all.source.job.engine["engines"][name] = std::move(more.source.job.engine);
  record["layout_hash"] = more.source.job.layout_hash;
  all.source.rank["engines"][name] = std::move(more.source.rank);
}

}  // namespace dtrain
