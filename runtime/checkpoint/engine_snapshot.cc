#include "runtime/checkpoint/engine_snapshot.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/engine/transaction.h"
#include "runtime/model/copy_shared.h"
#include "runtime/model/dtypes.h"
#include "runtime/plan/config/accepted_changes.h"

namespace dtrain {
namespace {

constexpr absl::string_view kModelSection = "model";  // The configuration's, of a model's settings.
constexpr char kMaster[] = "master";
constexpr char kRng[] = "rng.cpu";
constexpr char kDeviceRng[] = "rng.cuda";
constexpr char kMissed[] = "missed_updates";
constexpr char kBuffer[] = "buffer.";  // Before the name of a module's buffer that each rank keeps.

// The tensors that a rank keeps of the elements that it updates, by their names in a checkpoint.
std::vector<NamedTensor> UpdateState(const EngineState& state) {
  std::vector<NamedTensor> all;
  for (const StateSlot& slot : state.slots) {
    all.push_back({slot.name, slot.tensor});
  }
  if (state.master.defined()) {
    all.push_back({kMaster, state.master});
  }
  return all;
}

DType StateType(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16;
}

std::string PrefixOf(const std::string& name) { return name.empty() ? "" : name + "/"; }

// States of one optimizer mean nothing to another. `engine`: its record.
absl::Status CheckOptimizer(const EngineState& state, const checkpoint::Checkpoint& from,
                            const Json& engine) {
  const std::string saved =  // Checkpoints of the first version held AdamW's and did not say so.
      engine.value("optimizer", std::string("AdamW"));
  if (saved == state.optimizer) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s holds the states of optimizer %s, this run has %s: set optimizer.type back, or start "
      "anew with --fresh",
      from.DisplayName(), saved, state.optimizer));
}

// The first value that both have, that differs and that is not accepted, by its key in a
// configuration ("model.rope_theta"). A key that only one has does not count: another version of
// the program may have written it.
std::optional<ConfigDifference> ModelDifference(const std::string& key, const Json& was,
                                                const Json& now, const AcceptsChange& accepts) {
  if (was.is_object() && now.is_object()) {
    for (const auto& [name, value] : was.items()) {
      const bool says_nothing = key == kModelSection && (name == "dtype" || name == "torch_dtype");
      if (const auto other = now.find(name); other != now.end() && !says_nothing) {
        auto found = ModelDifference(absl::StrCat(key, ".", name), value, *other, accepts);
        if (found.has_value()) {
          return found;
        }
      }
    }
    return std::nullopt;
  }
  if (was == now || (accepts && accepts(key))) {
    return std::nullopt;
  }
  const std::string text = absl::StrFormat(
      "%s was %s, now %s", key.substr(kModelSection.size() + 1), DumpJson(was), DumpJson(now));
  return ConfigDifference{key, was, now, text};
}

// Shapes are compared tensor by tensor; this finds what has none, such as rope_theta in a file that
// was edited in place.
absl::Status CheckModelConfig(const EngineState& state, checkpoint::Checkpoint& from,
                              const AcceptsChange& accepts) {
  if (state.options.model_config.is_null() ||
      from.manifest().FindFile("model/config.json") == nullptr) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const std::string text, from.ReadModelFile("config.json"));
  DT_ASSIGN_OR_RETURN(const Json saved, ParseJson(text, from.DisplayName() + "/model/config.json"));
  const std::optional<ConfigDifference> difference =
      ModelDifference(std::string(kModelSection), saved, state.options.model_config, accepts);
  if (!difference.has_value()) {
    return absl::OkStatus();
  }
  const std::string otherwise =
      plan::IsAcceptable(*difference)
          ? absl::StrFormat("go on with it by --set %s=%s --accept-change %s", difference->key,
                            DumpJson(difference->now), difference->key)
          : "start anew with --fresh";
  return absl::FailedPreconditionError(absl::StrFormat(
      "the model differs from the one in %s: %s; restore the value, in the file of the model's "
      "shape too, or %s",
      from.DisplayName(), difference->text, otherwise));
}

int64_t ElementsOf(absl::Span<const plan::OwnedRange> ranges) {
  int64_t elements = 0;
  for (const plan::OwnedRange& range : ranges) {
    elements += range.flat.elements();
  }
  return elements;
}

Json RangesJson(absl::Span<const plan::OwnedRange> ranges) {
  Json json = Json::array();
  for (const plan::OwnedRange& range : ranges) {
    json.push_back({range.flat.begin, range.flat.end});
  }
  return json;
}

// The record of engine `name`: the whole of `records`, or what stands below its "engines"; null:
// there is none.
const Json* RecordOf(const Json& records, const std::string& name) {
  if (name.empty()) {
    return &records;
  }
  const auto engines = records.find("engines");
  if (engines == records.end() || !engines->is_object()) {
    return nullptr;
  }
  const auto found = engines->find(name);
  return found == engines->end() || !found->is_object() ? nullptr : &*found;
}

// The ranges that rank `rank` of a checkpoint stored; `local` counts from the start of its tensors.
absl::StatusOr<std::vector<plan::OwnedRange>> RangesOf(const checkpoint::Checkpoint& from, int rank,
                                                       const std::string& name, int64_t total) {
  static const Json kNone = Json::object();
  const Json* const of_engine =
      RecordOf(from.manifest().rank_state.at(static_cast<size_t>(rank)), name);
  const Json& record = of_engine != nullptr ? *of_engine : kNone;
  const auto ranges = record.find("ranges");
  std::vector<plan::OwnedRange> result;
  int64_t local = 0;
  bool valid = ranges != record.end() && ranges->is_array();
  for (size_t i = 0; valid && i < ranges->size(); ++i) {
    const Json& range = (*ranges)[i];
    valid = range.is_array() && range.size() == 2 && range[0].is_number_integer() &&
            range[1].is_number_integer();
    if (valid) {
      const plan::FlatRange flat{range[0].get<int64_t>(), range[1].get<int64_t>()};
      valid = 0 <= flat.begin && flat.begin <= flat.end && flat.end <= total;
      result.push_back({flat, local});
      local += flat.elements();
    }
  }
  if (!valid) {
    return absl::DataLossError(
        absl::StrFormat("%s: the record of rank %d holds no valid \"ranges\" of its moments",
                        from.DisplayName(), rank));
  }
  return result;
}

bool Share(absl::Span<const plan::OwnedRange> a, absl::Span<const plan::OwnedRange> b) {
  return std::any_of(a.begin(), a.end(), [&](const plan::OwnedRange& x) {
    return std::any_of(b.begin(), b.end(), [&](const plan::OwnedRange& y) {
      return plan::Intersect(x.flat, y.flat).elements() > 0;
    });
  });
}

absl::Status RestoreUpdateState(EngineState& state, const std::string& engine,
                                checkpoint::Checkpoint& from) {
  const int64_t total = state.flat->layout().total_elements();
  for (int rank = 0; rank < from.manifest().world_size; ++rank) {
    DT_ASSIGN_OR_RETURN(const auto stored, RangesOf(from, rank, engine, total));
    if (!Share(stored, state.owned)) {
      continue;
    }
    const int64_t elements = ElementsOf(stored);
    const bool same_ranges = stored == state.owned;
    for (const auto& [name, tensor] : UpdateState(state)) {
      if (same_ranges && tensor.is_cpu()) {  // Also on a GPU, where states are offloaded.
        // Nothing of it is near twice, and of a far tier nothing at all.
        DT_RETURN_IF_ERROR(
            from.ReadStateTensor(rank, {PrefixOf(engine) + name, StateType(tensor), {elements}},
                                 BytesOf(tensor.narrow(0, 0, elements))));
        continue;
      }
      const at::Tensor read = at::empty({elements}, at::TensorOptions(tensor.scalar_type()));
      DT_RETURN_IF_ERROR(from.ReadStateTensor(
          rank, {PrefixOf(engine) + name, StateType(tensor), {elements}}, BytesOf(read)));
      CopyShared(read, stored, tensor, state.owned);
    }
  }
  return absl::OkStatus();
}

bool Holds(const checkpoint::Checkpoint& from, int rank, const std::string& tensor) {
  const auto stored = from.StateTensors(rank);
  return std::any_of(stored.begin(), stored.end(),
                     [&](const auto& entry) { return entry.name == tensor; });
}

// A checkpoint of a CPU run has none: the GPU's generator then starts from the seed.
absl::Status RestoreDeviceRng(checkpoint::Checkpoint& from, int rank) {
  const at::Tensor rng = DeviceRngState();
  if (!rng.defined() || !Holds(from, rank, kDeviceRng)) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(
      from.ReadStateTensor(rank, {kDeviceRng, DType::kUInt8, {rng.numel()}}, BytesOf(rng)));
  SetDeviceRngState(rng);
  return absl::OkStatus();
}

at::Tensor MissedUpdates(const EngineState& state) {
  return at::tensor(at::IntArrayRef(state.progress.missed), at::TensorOptions(at::kLong));
}

// Every rank has stored the same.
absl::Status RestoreMissed(EngineState& state, const std::string& tensor,
                           checkpoint::Checkpoint& from) {
  if (state.progress.missed.empty() || !Holds(from, 0, tensor)) {
    return absl::OkStatus();
  }
  const at::Tensor missed = MissedUpdates(state);
  DT_RETURN_IF_ERROR(
      from.ReadStateTensor(0, {tensor, DType::kInt64, {missed.numel()}}, BytesOf(missed)));
  const auto* const counts = missed.const_data_ptr<int64_t>();
  state.progress.missed.assign(counts, counts + missed.numel());
  return absl::OkStatus();
}

// The module's buffers that are this rank's own, by their names in state/.
std::vector<NamedTensor> OwnBuffers(const EngineState& state, const RankPlace& place) {
  std::vector<NamedTensor> own;
  if (state.local_buffers && place.world_size > 1) {
    for (const NamedTensor& buffer : state.flat->module_buffers()) {
      own.push_back({kBuffer + buffer.name, buffer.tensor});
    }
  }
  return own;
}

// Each rank has them back where as many ranks have saved them; else all begin with rank 0's, which
// are in model/.
absl::Status RestoreOwnBuffers(EngineState& state, const std::string& prefix,
                               checkpoint::Checkpoint& from, const RankPlace& place) {
  if (from.manifest().world_size != place.world_size) {
    return absl::OkStatus();
  }
  for (const auto& [name, tensor] : OwnBuffers(state, place)) {
    const std::string own = prefix + name;
    if (!Holds(from, place.rank, own)) {  // Saved by a run with another policy.
      continue;
    }
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor.scalar_type()));
    const at::Tensor read = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
    DT_RETURN_IF_ERROR(
        from.ReadStateTensor(place.rank, {own, dtype, read.sizes().vec()}, BytesOf(read)));
    tensor.copy_(read);
  }
  return absl::OkStatus();
}

// Reads what `dtrain checkpoint import` writes. Step, optimizer states and random numbers stay as
// they are.
absl::Status RestoreWeights(EngineState& state, checkpoint::Checkpoint& from, std::string& note) {
  // A run that begins may drop what it wants.
  const auto may_differ = [](absl::string_view key) {
    return plan::CheckAcceptable(std::string(key)).ok();
  };
  DT_RETURN_IF_ERROR(CheckModelConfig(state, from, may_differ));
  DT_RETURN_IF_ERROR(RestoreModel(state, /*prefix=*/"", from));
  if (state.master.defined() && state.shard_values.defined()) {
    state.master.copy_(state.shard_values);
  } else if (state.master.defined()) {
    const plan::FlatRange all{0, state.flat->layout().total_elements()};
    CopyShared(state.flat->values(), {{all, 0}}, state.master, state.owned);
  }
  note = "; it holds weights alone: optimizer states are new";
  return absl::OkStatus();
}

Json LossScaleJson(const EngineState& state) {
  const plan::LossScale& scale = state.progress.loss_scale;
  return {{"scale", scale.scale},
          {"hysteresis", scale.hysteresis},
          {"steps", scale.steps},
          {"last_overflow", scale.last_overflow},
          {"unit", state.progress.loss_unit}};
}

void RestoreLossScale(const Json& json, EngineState& state) {
  plan::LossScale& scale = state.progress.loss_scale;
  scale.scale = json.value("scale", scale.scale);
  scale.hysteresis = json.value("hysteresis", scale.hysteresis);
  scale.steps = json.value("steps", scale.steps);
  scale.last_overflow = json.value("last_overflow", scale.last_overflow);
  state.progress.loss_unit = json.value("unit", state.progress.loss_unit);
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

std::string LayoutHash(const EngineState& state) {
  return absl::StrFormat("%016x", state.flat->layout().hash());
}

absl::StatusOr<EngineSnapshot> TakeSnapshot(const EngineState& state, RankPlace place,
                                            const std::string& engine) {
  const at::NoGradGuard no_grad;
  const std::string prefix = PrefixOf(engine);
  EngineSnapshot snapshot;
  DT_RETURN_IF_ERROR(state.settled);
  DT_RETURN_IF_ERROR(AddModelTensors(state, place, prefix, snapshot));
  const std::vector<plan::OwnedRange> stored = StoredRanges(state, place);
  const int64_t elements = ElementsOf(stored);
  for (const auto& [name, tensor] : UpdateState(state)) {
    const at::Tensor part =
        OnHost(tensor.narrow(0, stored.empty() ? 0 : stored[0].local, elements), snapshot);
    snapshot.source.state.push_back({{prefix + name, StateType(part), {elements}},
                                     BytesOf(part),
                                     StayOf(tensor, part, checkpoint::BytesStay::kUntilUpdate)});
  }
  if (!state.progress.missed.empty()) {
    const at::Tensor missed = MissedUpdates(state);
    snapshot.keep.push_back(missed);
    snapshot.source.state.push_back(
        {{prefix + kMissed, DType::kInt64, {missed.numel()}}, BytesOf(missed)});
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
    snapshot.source.state.push_back({{kRng, DType::kUInt8, {rng.numel()}}, BytesOf(rng)});
    if (const at::Tensor device_rng = DeviceRngState(); device_rng.defined()) {
      snapshot.keep.push_back(device_rng);
      snapshot.source.state.push_back(
          {{kDeviceRng, DType::kUInt8, {device_rng.numel()}}, BytesOf(device_rng)});
    }
  }
  if (!state.flat->device().is_host()) {
    DT_RETURN_IF_ERROR(state.flat->device().Synchronize());
  }
  if (engine.empty() && !state.options.model_config.is_null()) {
    snapshot.source.model_files.emplace_back("config.json",
                                             DumpJson(state.options.model_config, 2) + "\n");
  }
  snapshot.source.job.zero_stage = state.zero_stage;
  snapshot.source.job.layout_hash = LayoutHash(state);
  snapshot.source.job.engine = {{"optimizer", state.optimizer},
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

bool HoldsWeightsAlone(const checkpoint::Checkpoint& from) {
  return from.manifest().state.engine.value("weights_only", false);
}

absl::Status RestoreSnapshot(EngineState& state, checkpoint::Checkpoint& from, RankPlace place,
                             const std::string& name, std::string& note,
                             const AcceptsChange& accepts) {
  const at::NoGradGuard no_grad;
  const checkpoint::Manifest& manifest = from.manifest();
  const bool same_ranks = manifest.world_size == place.world_size;
  const Json* const record = RecordOf(manifest.state.engine, name);
  if (record == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s holds no engine \"%s\": track what the run that saved it tracked, in "
                        "the same order, or "
                        "start anew with --fresh",
                        from.DisplayName(), name));
  }
  const Json& engine = *record;
  if (name.empty() && HoldsWeightsAlone(from)) {
    return RestoreWeights(state, from, note);
  }
  if (name.empty()) {
    DT_RETURN_IF_ERROR(from.CheckLayout(LayoutHash(state)));
  } else if (engine.value("layout_hash", "") != LayoutHash(state)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s was saved with another parameter layout of engine \"%s\": a parameter's "
        "name, shape, dtype or order has changed",
        from.DisplayName(), name));
  }
  DT_RETURN_IF_ERROR(CheckOptimizer(state, from, engine));
  if (name.empty()) {
    DT_RETURN_IF_ERROR(CheckModelConfig(state, from, accepts));
  }
  DT_RETURN_IF_ERROR(RestoreModel(state, PrefixOf(name), from));
  DT_RETURN_IF_ERROR(RestoreUpdateState(state, name, from));
  DT_RETURN_IF_ERROR(RestoreMissed(state, PrefixOf(name) + kMissed, from));
  DT_RETURN_IF_ERROR(RestoreOwnBuffers(state, PrefixOf(name), from, place));
  if (name.empty()) {  // The random numbers come with the first engine.
    // Between steps all ranks draw alike, so that any number of them goes on from rank 0's.
    const int rank = same_ranks ? place.rank : 0;
    const at::Tensor rng = CpuRngState();
    DT_RETURN_IF_ERROR(
        from.ReadStateTensor(rank, {kRng, DType::kUInt8, {rng.numel()}}, BytesOf(rng)));
    SetCpuRngState(rng);
    DT_RETURN_IF_ERROR(RestoreDeviceRng(from, rank));
    if (!same_ranks) {
      note = absl::StrFormat("; %d ranks saved it and %d read it", manifest.world_size,
                             place.world_size);
    }
  }
  state.progress.step = engine.value("step", int64_t{0});
  state.progress.updates = engine.value("updates", state.progress.step);
  state.progress.skipped = engine.value("skipped", int64_t{0});
  if (const auto scale = engine.find("loss_scale"); scale != engine.end()) {
    RestoreLossScale(*scale, state);
  }
  return absl::OkStatus();
}

}  // namespace dtrain
