#include "runtime/checkpoint/engine_snapshot.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/engine/transaction.h"

namespace dtrain {
namespace {

constexpr char kExpAvg[] = "exp_avg";
constexpr char kExpAvgSq[] = "exp_avg_sq";
constexpr char kRng[] = "rng.cpu";

absl::StatusOr<DType> DTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    case at::kDouble:
      return DType::kFloat64;
    case at::kInt:
      return DType::kInt32;
    case at::kLong:
      return DType::kInt64;
    case at::kByte:
      return DType::kUInt8;
    case at::kBool:
      return DType::kBool;
    default:
      return absl::UnimplementedError(
          absl::StrFormat("no checkpoint type for %s", c10::toString(type)));
  }
}

absl::Span<std::byte> BytesOf(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

std::string PublicName(const EngineState& state, const std::string& name) {
  return state.options.public_name ? state.options.public_name(name) : name;
}

// Everything that model/ holds, in one order on every rank.
std::vector<NamedTensor> ModelTensors(const EngineState& state) {
  std::vector<NamedTensor> all;
  const auto& entries = state.flat->layout().entries();
  for (size_t i = entries.size(); i-- > 0;) {  // Layout order is reverse registration order.
    all.push_back({PublicName(state, entries[i].name), state.flat->parameters()[i]});
  }
  for (const auto* list : {&state.flat->frozen(), &state.flat->module_buffers()}) {
    for (const NamedTensor& item : *list) {
      all.push_back({PublicName(state, item.name), item.tensor});
    }
  }
  return all;
}

checkpoint::NamedTensor FlatPart(const char* name, const at::Tensor& flat, FlatSlice slice) {
  const at::Tensor part = flat.narrow(0, slice.begin, slice.end - slice.begin);
  return {{name, DType::kFloat32, {slice.end - slice.begin}}, BytesOf(part)};
}

std::string LayoutHash(const EngineState& state) {
  return absl::StrFormat("%016x", state.flat->layout().hash());
}

absl::Status RestoreModel(EngineState& state, checkpoint::Checkpoint& from) {
  for (const NamedTensor& item : ModelTensors(state)) {
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(item.tensor.scalar_type()));
    at::Tensor target = item.tensor.is_contiguous() ? item.tensor : item.tensor.contiguous();
    DT_RETURN_IF_ERROR(
        from.ReadModelTensor({item.name, dtype, target.sizes().vec()}, BytesOf(target)));
    if (!target.is_alias_of(item.tensor)) {
      item.tensor.copy_(target);
    }
  }
  return absl::OkStatus();
}

}  // namespace

FlatSlice SliceOf(int64_t total_elements, RankPlace place) {
  constexpr int64_t kAlign = plan::ParamLayout::kAlignElements;
  const int64_t blocks = (total_elements + kAlign - 1) / kAlign;
  const auto cut = [&](int64_t rank) {
    return std::min(total_elements, blocks * rank / place.world_size * kAlign);
  };
  return {cut(place.rank), cut(place.rank + 1)};
}

absl::Status CheckStorable(const EngineState& state) {
  for (const NamedTensor& item : ModelTensors(state)) {
    DT_RETURN_IF_ERROR(Annotate(DTypeOf(item.tensor.scalar_type()).status(), item.name));
  }
  return absl::OkStatus();
}

EngineSnapshot TakeSnapshot(const EngineState& state, RankPlace place) {
  const at::NoGradGuard no_grad;
  EngineSnapshot snapshot;
  const std::vector<NamedTensor> model = ModelTensors(state);
  uint64_t total = 1;
  for (const NamedTensor& item : model) {
    total += item.tensor.nbytes();
  }
  uint64_t before = 0;
  for (const NamedTensor& item : model) {
    const auto owner = static_cast<int>(before * static_cast<uint64_t>(place.world_size) / total);
    before += item.tensor.nbytes();
    const auto dtype = DTypeOf(item.tensor.scalar_type());
    if (owner == place.rank && dtype.ok()) {
      const at::Tensor contiguous = item.tensor.contiguous();
      snapshot.keep.push_back(contiguous);
      snapshot.source.model.push_back(
          {{item.name, *dtype, contiguous.sizes().vec()}, BytesOf(contiguous)});
    }
  }
  const FlatSlice slice = SliceOf(state.flat->layout().total_elements(), place);
  snapshot.source.state.push_back(FlatPart(kExpAvg, state.exp_avg, slice));
  snapshot.source.state.push_back(FlatPart(kExpAvgSq, state.exp_avg_sq, slice));
  const at::Tensor rng = CpuRngState();
  snapshot.keep.push_back(rng);
  snapshot.source.state.push_back({{kRng, DType::kUInt8, {rng.numel()}}, BytesOf(rng)});
  if (!state.options.model_config.is_null()) {
    snapshot.source.model_files.emplace_back("config.json",
                                             DumpJson(state.options.model_config, 2) + "\n");
  }
  snapshot.source.job.zero_stage = 0;
  snapshot.source.job.layout_hash = LayoutHash(state);
  snapshot.source.job.engine = {{"step", state.step},
                                {"updates", state.updates},
                                {"skipped", state.skipped},
                                {"total_elements", state.flat->layout().total_elements()}};
  snapshot.source.rank = {{"slice", {slice.begin, slice.end}}};
  return snapshot;
}

absl::Status RestoreSnapshot(EngineState& state, checkpoint::Checkpoint& from, RankPlace place,
                             std::string& note) {
  const at::NoGradGuard no_grad;
  const checkpoint::Manifest& manifest = from.manifest();
  if (manifest.state.layout_hash != LayoutHash(state)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "checkpoint %s is of another model: its parameter layout is %s, this program's is %s",
        from.DisplayName(), manifest.state.layout_hash, LayoutHash(state)));
  }
  DT_RETURN_IF_ERROR(RestoreModel(state, from));
  const int64_t total = state.flat->layout().total_elements();
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    const FlatSlice slice = SliceOf(total, {rank, manifest.world_size});
    for (const auto& [name, flat] :
         {std::pair(kExpAvg, state.exp_avg), std::pair(kExpAvgSq, state.exp_avg_sq)}) {
      const checkpoint::NamedTensor part = FlatPart(name, flat, slice);
      const at::Tensor target = flat.narrow(0, slice.begin, slice.end - slice.begin);
      DT_RETURN_IF_ERROR(from.ReadStateTensor(rank, part.spec, BytesOf(target)));
    }
  }
  if (manifest.world_size == place.world_size) {
    const at::Tensor rng = CpuRngState();
    DT_RETURN_IF_ERROR(
        from.ReadStateTensor(place.rank, {kRng, DType::kUInt8, {rng.numel()}}, BytesOf(rng)));
    SetCpuRngState(rng);
  } else {
    note = absl::StrFormat(
        "; it was saved by %d ranks and %d read it: the same samples and weights, but random "
        "numbers "
        "of the model (dropout) start anew",
        manifest.world_size, place.world_size);
  }
  const Json& engine = manifest.state.engine;
  state.step = engine.value("step", int64_t{0});
  state.updates = engine.value("updates", state.step);
  state.skipped = engine.value("skipped", int64_t{0});
  return absl::OkStatus();
}

}  // namespace dtrain
