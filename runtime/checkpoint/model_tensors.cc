#include "runtime/checkpoint/model_tensors.h"

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/format/manifest.h"
#include "runtime/checkpoint/restore/shared_ranges.h"
#include "runtime/model/dtypes.h"
#include "runtime/offload/far_tier.h"

namespace dtrain {
namespace {

// How tensors are called outside the module. Null: as in it.
using PublicName = std::function<std::string(const std::string&)>;

StoredTensor Named(const PublicName& public_name, const std::string& name,
                   const at::Tensor& tensor) {
  return {.name = public_name ? public_name(name) : name, .module_name = name, .tensor = tensor};
}

// The parameters of `flat`, with how they are shared out where `shared`.
void AddParameters(const PublicName& public_name, const FlatParameters& flat, bool shared,
                   bool frozen, std::vector<StoredTensor>& all) {
  const auto& entries = flat.layout().entries();
  for (size_t i = entries.size(); i-- > 0;) {  // Layout order is reverse registration order.
    StoredTensor& item =
        all.emplace_back(Named(public_name, entries[i].name, flat.parameters()[i]));
    if (shared) {
      item.shared = StoredTensor::Shared{&entries[i], i, frozen};
    }
  }
}

constexpr int64_t kCopyAlign = 64;  // Bytes; copies in one file are aligned for any type.

int64_t CopyBytes(const at::Tensor& tensor) {
  return (static_cast<int64_t>(tensor.nbytes()) + kCopyAlign - 1) / kCopyAlign * kCopyAlign;
}

// Whether a snapshot has a copy of it, because its memory goes with the next gather.
bool IsCopied(const StoredTensor& item) { return item.shared.has_value() && item.tensor.is_cpu(); }

// Copies of tensors whose memory is needed again: each in memory, or all in one file without a
// name, so that who keeps weights in a file needs no memory for them while they are saved either.
class Copies {
 public:
  // `bytes`: CopyBytes of all.
  static absl::StatusOr<Copies> Create(const OffloadOptions& options, int64_t bytes) {
    Copies copies;
    if (options.device == OffloadOptions::Device::kFile && bytes > 0) {
      DT_ASSIGN_OR_RETURN(const FarState file, FarState::InFile(options.folder, bytes, at::kByte,
                                                                /*value=*/0, options.setting));
      copies.file_ = file.tensor();
    }
    return copies;
  }
  at::Tensor Copy(const at::Tensor& tensor) {
    if (!file_.defined()) {
      return tensor.clone();
    }
    at::Tensor place = file_.narrow(0, used_, static_cast<int64_t>(tensor.nbytes()))
                           .view(tensor.scalar_type())
                           .view(tensor.sizes());
    used_ += CopyBytes(tensor);
    place.copy_(tensor);
    return place;
  }

 private:
  at::Tensor file_;
  int64_t used_ = 0;
};

// The first save would fail with them otherwise, and every later one.
absl::Status CheckModelFiles(const EngineOptions& options) {
  std::set<std::string> names;
  if (!options.model_config.is_null()) {
    names.insert("config.json");
  }
  for (const auto& [name, text] : options.model_files) {
    const bool is_weights =
        absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".safetensors.index.json");
    if (!checkpoint::IsPlainName(name) || is_weights || !names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "EngineOptions::model_files has \"", absl::CHexEscape(name),
          "\"; allowed: different names of [A-Za-z0-9_][A-Za-z0-9_.-]*, at most 128 characters, "
          "that are neither weights (*.safetensors) nor the config.json of model_config"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<StoredTensor> StoredTensors(const EngineState& state) {
  return StoredTensors(state, state.options.public_name, state.options.store_frozen);
}

std::vector<StoredTensor> StoredTensors(const EngineState& state, const PublicName& public_name,
                                        bool with_frozen) {
  std::vector<StoredTensor> all;
  AddParameters(public_name, *state.flat, state.live != nullptr, /*frozen=*/false, all);
  if (state.frozen != nullptr && with_frozen) {
    AddParameters(public_name, *state.frozen->flat, /*shared=*/true, /*frozen=*/true, all);
  }
  const std::vector<NamedTensor> none;
  const auto& frozen = with_frozen ? state.flat->frozen() : none;
  for (const NamedTensor& item : frozen) {
    all.push_back(Named(public_name, item.name, item.tensor));
    all.back().is_updated = false;
  }
  for (const NamedTensor& item : state.flat->module_buffers()) {
    all.push_back(Named(public_name, item.name, item.tensor));
    all.back().is_buffer = true;
    all.back().is_updated = false;
  }
  return all;
}

absl::Status WithWhole(const EngineState& state, const StoredTensor& item,
                       absl::FunctionRef<void()> function) {
  if (item.shared.has_value()) {
    LiveParameters& live = item.shared->frozen ? *state.frozen->live : *state.live;
    return live.With(item.shared->index, function);
  }
  function();
  return absl::OkStatus();
}

absl::Status WithExactReads(const EngineState& state, absl::FunctionRef<void()> function) {
  if (state.live == nullptr) {
    function();
    return absl::OkStatus();
  }
  if (state.frozen == nullptr) {
    return state.live->WithNone(function);
  }
  absl::Status others;
  absl::Status status =
      state.frozen->live->WithNone([&] { others = state.live->WithNone(function); });
  status.Update(others);
  return status;
}

absl::Span<std::byte> BytesOf(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::Tensor OnHost(const at::Tensor& tensor, EngineSnapshot& snapshot) {
  if (tensor.is_cpu()) {
    return tensor.contiguous();
  }
  at::Tensor copy = at::empty(
      tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(at::kCPU).pinned_memory(true));
  copy.copy_(tensor, /*non_blocking=*/true);
  snapshot.keep.push_back(copy);
  return copy;
}

checkpoint::BytesStay StayOf(const at::Tensor& tensor, const at::Tensor& kept,
                             checkpoint::BytesStay changes) {
  return kept.is_alias_of(tensor) ? changes : checkpoint::BytesStay::kWithSnapshot;
}

absl::Status CheckStorable(const EngineState& state) {
  DT_RETURN_IF_ERROR(CheckModelFiles(state.options));
  for (const StoredTensor& item : StoredTensors(state)) {
    DT_RETURN_IF_ERROR(Annotate(DTypeOf(item.tensor.scalar_type()).status(), item.name));
  }
  return absl::OkStatus();
}

WrittenModel::WrittenModel(const EngineState& state, RankPlace place, const std::string& prefix)
    : state_(state), place_(std::move(place)) {
  std::vector<StoredTensor> model = StoredTensors(state);
  uint64_t total = 1;
  for (const StoredTensor& item : model) {
    total += item.tensor.nbytes();
  }
  uint64_t before = 0;
  for (StoredTensor& item : model) {
    const auto by_bytes =
        static_cast<int>(before * static_cast<uint64_t>(place_.world_size) / total);
    before += item.tensor.nbytes();
    // Buffers of one rank, since a mean and a variance of two belong to no data.
    const bool is_mine = (item.is_buffer ? 0 : by_bytes) == place_.rank;
    copied_bytes_ += is_mine && IsCopied(item) ? CopyBytes(item.tensor) : 0;
    if (is_mine || item.shared.has_value()) {
      Item& added = items_.emplace_back();
      added.stored = std::move(item);
      added.is_mine = is_mine;
      added.last.spec.name = prefix + added.stored.name;
    }
  }
}

bool WrittenModel::IsUnchanged(const Item& item) {
  const at::Tensor& tensor = item.stored.tensor;
  return !item.stored.shared.has_value() &&
         item.last.stay != checkpoint::BytesStay::kWithSnapshot &&
         tensor.const_data_ptr() == static_cast<const void*>(item.last.bytes.data()) &&
         tensor.sizes() == at::IntArrayRef(item.last.spec.shape) && tensor.is_contiguous() &&
         tensor.scalar_type() == item.type;
}

absl::Status WrittenModel::AddGather(Item& item, EngineSnapshot& snapshot) const {
  const at::Tensor& tensor = item.stored.tensor;
  checkpoint::Gather gather;
  gather.name = item.last.spec.name;
  DT_ASSIGN_OR_RETURN(gather.dtype, DTypeOf(tensor.scalar_type()));
  if (item.is_mine) {
    item.last.spec.dtype = gather.dtype;
    item.last.spec.shape = tensor.sizes().vec();
    item.last.bytes = BytesOf(tensor);  // Gathered weights always have the same addresses.
    item.last.stay = checkpoint::BytesStay::kInGather;
    item.last.on_device = snapshot.Leaves(tensor);
    gather.model = static_cast<int64_t>(snapshot.source.model.size());
    snapshot.source.model.push_back(item.last);
  }
  gather.run = [this, &item](absl::FunctionRef<void()> function) {
    return WithWhole(state_, item.stored, function);
  };
  snapshot.source.gathers.push_back(std::move(gather));
  return absl::OkStatus();
}

absl::Status WrittenModel::AddTo(EngineSnapshot& snapshot) {
  DT_ASSIGN_OR_RETURN(Copies copies,
                      Copies::Create(place_.copies, snapshot.is_staged ? 0 : copied_bytes_));
  snapshot.source.model.reserve(snapshot.source.model.size() + items_.size());
  for (Item& item : items_) {
    const at::Tensor& tensor = item.stored.tensor;
    if (snapshot.is_staged && item.stored.shared.has_value()) {
      DT_RETURN_IF_ERROR(AddGather(item, snapshot));
      continue;
    }
    const bool on_device = snapshot.Leaves(tensor) && !item.stored.shared.has_value();
    if (IsUnchanged(item) && item.last.on_device == on_device) {
      snapshot.source.model.push_back(item.last);
      continue;
    }
    const auto dtype = DTypeOf(tensor.scalar_type());
    DT_RETURN_IF_ERROR(WithWhole(state_, item.stored, [&] {
      if (!item.is_mine || !dtype.ok()) {
        return;
      }
      const at::Tensor kept = on_device               ? tensor
                              : IsCopied(item.stored) ? copies.Copy(tensor)
                                                      : OnHost(tensor, snapshot);
      snapshot.keep.push_back(kept);
      const auto changes = item.stored.is_updated ? checkpoint::BytesStay::kUntilUpdate
                                                  : checkpoint::BytesStay::kUntilStep;
      item.last.spec.dtype = *dtype;
      item.last.spec.shape = kept.sizes().vec();
      item.last.bytes = BytesOf(kept);
      item.last.stay = StayOf(tensor, kept, changes);
      item.last.on_device = on_device;
      item.type = tensor.scalar_type();
      snapshot.source.model.push_back(item.last);
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<checkpoint::TensorSpec>> ModelSpecs(const EngineState& state) {
  std::vector<checkpoint::TensorSpec> specs;
  for (const StoredTensor& item : StoredTensors(state)) {
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(item.tensor.scalar_type()));
    specs.push_back({item.name, dtype, item.tensor.sizes().vec()});
  }
  return specs;
}

absl::Status ReadMasters(EngineState& state, const std::string& prefix, RestoreReads& reads) {
  const at::Tensor& master = state.optimizer.master;
  if (!master.defined()) {
    return absl::OkStatus();
  }
  const PublicName& public_name = state.options.public_name;
  for (const plan::LayoutEntry& entry : state.flat->layout().entries()) {
    const std::string name = prefix + (public_name ? public_name(entry.name) : entry.name);
    DT_ASSIGN_OR_RETURN(const checkpoint::TensorSpec stored,
                        StoredForm(reads.from(), {name, DType::kFloat32, entry.shape}));
    const plan::OwnedRange whole{{entry.offset, entry.offset + entry.elements}, 0};
    for (const SharedRange& range : SharedRanges({whole}, state.owned)) {
      DT_RETURN_IF_ERROR(
          reads.Model(stored, range.from, master.narrow(0, range.to, range.elements)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModel(EngineState& state, const std::string& prefix, ModelPart part,
                       RestoreReads& reads, Conversions& converted) {
  for (LiveParameters* const live : state.lives()) {
    DT_RETURN_IF_ERROR(live->Invalidate());  // A gather under way reads what is written here.
  }
  if (state.live != nullptr) {
    if (const Device& device = state.flat->device(); !device.is_host()) {
      DT_RETURN_IF_ERROR(device.Synchronize());
    }
  }
  for (const StoredTensor& item : StoredTensors(state)) {
    const bool is_frozen = item.shared.has_value() && item.shared->frozen;
    if (part == ModelPart::kNotUpdated && item.is_updated && !is_frozen) {
      continue;
    }
    DT_ASSIGN_OR_RETURN(const DType dtype, DTypeOf(item.tensor.scalar_type()));
    DT_ASSIGN_OR_RETURN(
        const checkpoint::TensorSpec stored,
        StoredForm(reads.from(), {prefix + item.name, dtype, item.tensor.sizes().vec()}));
    converted.Add(stored.dtype, dtype);
    if (!item.shared.has_value()) {
      DT_RETURN_IF_ERROR(reads.Model(stored, 0, item.tensor));
      continue;
    }
    const plan::LayoutEntry& entry = *item.shared->entry;
    const plan::OwnedRange whole{{entry.offset, entry.offset + entry.elements}, 0};
    const bool frozen = item.shared->frozen;
    const at::Tensor& values = frozen ? state.frozen->values : state.shard_values;
    // A rank that owns none of it finds out as the others do whether the checkpoint has it.
    DT_RETURN_IF_ERROR(reads.Model(stored, 0, values.narrow(0, 0, 0)));
    for (const SharedRange& range :
         SharedRanges({whole}, frozen ? state.frozen->owned : state.owned)) {
      DT_RETURN_IF_ERROR(
          reads.Model(stored, range.from, values.narrow(0, range.to, range.elements)));
    }
  }
  return absl::OkStatus();
}

absl::Status FinishModel(EngineState& state) {
  for (LiveParameters* const live : state.lives()) {
    DT_RETURN_IF_ERROR(live->Invalidate());
    DT_RETURN_IF_ERROR(live->Refresh());
  }
  return absl::OkStatus();
}

}  // namespace dtrain
