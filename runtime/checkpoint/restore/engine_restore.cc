#include "runtime/checkpoint/restore/engine_restore.h"

#include <algorithm>
#include <optional>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/numeric/dtype.h"
#include "base/status.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/checkpoint/restore/flat_state.h"
#include "runtime/checkpoint/restore/stored_state.h"
#include "runtime/checkpoint/restore/stored_weights.h"
#include "runtime/engine/transaction.h"
#include "runtime/model/cpu_rng.h"
#include "runtime/model/dtypes.h"
#include "runtime/plan/config/accepted_changes.h"

namespace dtrain {
namespace {

constexpr absl::string_view kModelSection = "model";  // The configuration's, of a model's settings.

// States of one optimizer mean nothing to another. `engine`: its record.
absl::Status CheckOptimizer(const EngineState& state, const checkpoint::Checkpoint& from,
                            const Json& engine) {
  const std::string saved =  // Checkpoints of the first version held AdamW's and did not say so.
      engine.value("optimizer", std::string("AdamW"));
  if (saved == state.optimizer.name) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s holds the states of optimizer %s, this run has %s: set optimizer.type back, or start "
      "anew with --fresh",
      from.DisplayName(), saved, state.optimizer.name));
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

bool Holds(const checkpoint::Checkpoint& from, int rank, const std::string& tensor) {
  const auto stored = from.StateTensors(rank);
  return std::any_of(stored.begin(), stored.end(),
                     [&](const auto& entry) { return entry.name == tensor; });
}

// Asks for the random numbers that this rank goes on with. A checkpoint of a CPU run has none of a
// GPU, whose generator then starts from the seed.
absl::Status ReadRng(int rank, RestoreReads& reads, RestoredValues& values) {
  values.rng = CpuRngState();
  DT_RETURN_IF_ERROR(
      reads.State(rank, {kStoredRng, DType::kUInt8, {values.rng.numel()}}, 0, values.rng));
  const at::Tensor device_rng = DeviceRngState();
  if (!device_rng.defined() || !Holds(reads.from(), rank, kStoredDeviceRng)) {
    return absl::OkStatus();
  }
  values.device_rng = device_rng;
  return reads.State(rank, {kStoredDeviceRng, DType::kUInt8, {device_rng.numel()}}, 0, device_rng);
}

// Every rank has stored the same.
absl::Status ReadMissed(const EngineState& state, const std::string& tensor, RestoreReads& reads,
                        RestoredValues& values) {
  if (state.progress.missed.empty() || !Holds(reads.from(), 0, tensor)) {
    return absl::OkStatus();
  }
  values.missed = MissedUpdates(state);
  return reads.State(0, {tensor, DType::kInt64, {values.missed.numel()}}, 0, values.missed);
}

// Each rank has them back where as many ranks have saved them; else all begin with rank 0's, which
// are in model/ and are read in place meanwhile.
absl::Status ReadOwnBuffers(const EngineState& state, const std::string& prefix,
                            const RankPlace& place, RestoreReads& reads, RestoredValues& values) {
  if (reads.from().manifest().world_size != place.world_size) {
    return absl::OkStatus();
  }
  for (const auto& [name, tensor] : OwnBuffers(state, place)) {
    const std::string own = prefix + name;
    if (!Holds(reads.from(), place.rank, own)) {  // Saved by a run with another policy.
      continue;
    }
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(tensor.scalar_type()));
    const DType stored = StoredTypeOf(reads.from(), place.rank, own, dtype);
    const at::Tensor read = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
    DT_RETURN_IF_ERROR(reads.State(place.rank, {own, stored, read.sizes().vec()}, 0, read));
    values.buffers.emplace_back(read, tensor);
  }
  return absl::OkStatus();
}

// Asks for what `dtrain checkpoint import` writes. Step, optimizer states and random numbers stay
// as they are.
absl::StatusOr<RestoredValues> ReadWeights(EngineState& state, const RankPlace& place,
                                           RestoreReads& reads) {
  // A run that begins may drop what it wants.
  const auto may_differ = [](absl::string_view key) {
    return plan::CheckAcceptable(std::string(key)).ok();
  };
  const checkpoint::Checkpoint& from = reads.from();
  DT_RETURN_IF_ERROR(CheckModelConfig(state, reads.from(), may_differ));
  DT_ASSIGN_OR_RETURN(const std::vector<checkpoint::TensorSpec> wanted, ModelSpecs(state));
  std::string unused;
  DT_RETURN_IF_ERROR(CheckWeightsFit(from, wanted, unused));
  if (!unused.empty() && place.rank == 0) {
    DT_LOG(Warning) << from.DisplayName() << " holds more than is read: " << unused;
  }
  Conversions converted;
  DT_RETURN_IF_ERROR(ReadModel(state, /*prefix=*/"", ModelPart::kAll, reads, converted));
  DT_RETURN_IF_ERROR(ReadMasters(state, /*prefix=*/"", reads));
  RestoredValues values;
  values.weights_alone = true;
  values.note =
      absl::StrCat("; it holds weights alone: optimizer states are new", converted.Text());
  return values;
}

void RestoreLossScale(const Json& json, EngineState& state) {
  plan::LossScale& scale = state.progress.loss_scale;
  scale.scale = json.value("scale", scale.scale);
  scale.hysteresis = json.value("hysteresis", scale.hysteresis);
  scale.steps = json.value("steps", scale.steps);
  scale.last_overflow = json.value("last_overflow", scale.last_overflow);
  state.progress.loss_unit = json.value("unit", state.progress.loss_unit);
}

// The type of the weights in the run that saved the checkpoint of this model.
absl::StatusOr<DType> PrecisionOf(const EngineState& state, const checkpoint::Checkpoint& from,
                                  const std::string& name, const Json& record) {
  const plan::ParamLayout& layout = state.flat->layout();
  const std::string hash =
      name.empty() ? from.manifest().state.layout_hash : record.value("layout_hash", "");
  if (const auto saved = StoredPrecision(layout, hash); saved.has_value()) {
    return *saved;
  }
  if (!name.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s was saved with another parameter layout of engine \"%s\": a parameter's name, shape or "
        "order has changed",
        from.DisplayName(), name));
  }
  // Another model differs in names or shapes, which say more than hashes.
  DT_ASSIGN_OR_RETURN(const std::vector<checkpoint::TensorSpec> wanted, ModelSpecs(state));
  std::string unused;
  const absl::Status fit = CheckWeightsFit(from, wanted, unused);
  return absl::FailedPreconditionError(
      !fit.ok() ? std::string(fit.message())
      : unused.empty()
          ? std::string(from.CheckLayout(LayoutHash(layout)).message())
          : absl::StrCat(from.DisplayName(), " does not fit the program's model: ", unused));
}

// Asks for the model, and for masters where the checkpoint has none: where it was `saved` in
// another precision, from what is exact there, the masters of 2-byte weights or weights in fp32.
absl::Status ReadWeightsOf(EngineState& state, const std::string& engine, DType saved,
                           RestoreReads& reads, RestoredValues& values, Conversions& converted) {
  const std::string prefix = StoredPrefix(engine);
  const DType now = state.flat->dtype();
  if (saved == now) {
    return ReadModel(state, prefix, ModelPart::kAll, reads, converted);
  }
  absl::StrAppendFormat(&values.note, "; precision %s -> %s", DTypeName(saved), DTypeName(now));
  values.record.erase("loss_scale");  // One of another type says nothing: this run's first is kept.
  if (saved == DType::kFloat32) {
    DT_RETURN_IF_ERROR(ReadModel(state, prefix, ModelPart::kAll, reads, converted));
    return ReadMasters(state, prefix, reads);
  }
  DT_RETURN_IF_ERROR(ReadModel(state, prefix, ModelPart::kNotUpdated, reads, converted));
  return ReadWeightsFromMasters(state, engine, reads);
}

}  // namespace

bool HoldsWeightsAlone(const checkpoint::Checkpoint& from) {
  return checkpoint::HoldsWeightsAlone(from.manifest());
}

absl::StatusOr<RestoredValues> ReadEngine(EngineState& state, const std::string& name,
                                          RankPlace place, RestoreReads& reads,
                                          const AcceptsChange& accepts) {
  const at::NoGradGuard no_grad;
  checkpoint::Checkpoint& from = reads.from();
  const checkpoint::Manifest& manifest = from.manifest();
  const Json* const record = RecordOf(manifest.state.engine, name);
  if (record == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s holds no engine \"%s\": track what the run that saved it tracked, in "
                        "the same order, or "
                        "start anew with --fresh",
                        from.DisplayName(), name));
  }
  if (name.empty() && HoldsWeightsAlone(from)) {
    return ReadWeights(state, place, reads);
  }
  DT_ASSIGN_OR_RETURN(const DType saved, PrecisionOf(state, from, name, *record));
  DT_RETURN_IF_ERROR(CheckOptimizer(state, from, *record));
  if (name.empty()) {
    DT_RETURN_IF_ERROR(CheckModelConfig(state, from, accepts));
  }
  const std::string prefix = StoredPrefix(name);
  RestoredValues values;
  values.record = *record;
  Conversions converted;
  DT_RETURN_IF_ERROR(ReadWeightsOf(state, name, saved, reads, values, converted));
  DT_RETURN_IF_ERROR(ReadUpdateState(state, name, saved, reads, converted));
  values.note += converted.Text();
  DT_RETURN_IF_ERROR(ReadMissed(state, prefix + kStoredMissed, reads, values));
  DT_RETURN_IF_ERROR(ReadOwnBuffers(state, prefix, place, reads, values));
  if (!name.empty()) {
    return values;
  }
  // Between steps all ranks draw alike, so that any number of them goes on from rank 0's.
  const bool same_ranks = manifest.world_size == place.world_size;
  DT_RETURN_IF_ERROR(ReadRng(same_ranks ? place.rank : 0, reads, values));
  if (!same_ranks) {
    absl::StrAppendFormat(&values.note, "; saved by %d rank%s, read by %d", manifest.world_size,
                          manifest.world_size == 1 ? "" : "s", place.world_size);
  }
  return values;
}

absl::Status ApplyEngine(const RestoredValues& values, EngineState& state) {
  const at::NoGradGuard no_grad;
  for (const auto& [read, target] : values.buffers) {
    target.copy_(read);
  }
  DT_RETURN_IF_ERROR(FinishModel(state));
  if (values.weights_alone) {
    return absl::OkStatus();
  }
  if (values.missed.defined()) {
    const auto* const counts = values.missed.const_data_ptr<int64_t>();
    state.progress.missed.assign(counts, counts + values.missed.numel());
  }
  if (values.rng.defined()) {
    SetCpuRngState(values.rng);
  }
  if (values.device_rng.defined()) {
    SetDeviceRngState(values.device_rng);
  }
  state.progress.step = values.record.value("step", int64_t{0});
  state.progress.updates = values.record.value("updates", state.progress.step);
  state.progress.skipped = values.record.value("skipped", int64_t{0});
  if (const auto loss_scale = values.record.find("loss_scale"); loss_scale != values.record.end()) {
    RestoreLossScale(*loss_scale, state);
  }
  return absl::OkStatus();
}

}  // namespace dtrain
