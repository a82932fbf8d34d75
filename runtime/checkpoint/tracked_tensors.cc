#include "runtime/checkpoint/tracked_tensors.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/format/safetensors_header.h"
#include "runtime/checkpoint/model_tensors.h"
#include "runtime/model/dtypes.h"
#include "runtime/model/model_sync.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain {
namespace {

// "fp32 [3, 4]".
template <typename Shape>
std::string Text(std::optional<DType> dtype, const Shape& shape) {
  return absl::StrCat(dtype.has_value() ? DTypeName(*dtype) : "another type", " [",
                      absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<checkpoint::TensorSpec> SpecOf(const NamedTensor& item) {
  const absl::StatusOr<DType> dtype = DTypeOf(item.tensor.scalar_type());
  DT_RETURN_IF_ERROR(Annotate(dtype.status(), item.name));
  return checkpoint::TensorSpec{item.name, *dtype, item.tensor.sizes().vec()};
}

}  // namespace

std::string TrackedName(const std::string& group, const std::string& tensor) {
  return absl::StrCat("tracked/", group, "/", tensor);
}

absl::Status AddTensors(const std::string& name, std::vector<TrackedTensor> tensors,
                        std::vector<NamedTensor>& all) {
  for (TrackedTensor& item : tensors) {
    const std::string stored = TrackedName(name, item.name);
    const bool again = std::any_of(all.begin(), all.end(),
                                   [&](const NamedTensor& other) { return other.name == stored; });
    if (again || !item.tensor.defined()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "Checkpointer::Track got the tensor \"%s\" of \"%s\" %s; give each tensor a name of its "
          "own, and memory before it is tracked",
          item.name, name, again ? "twice" : "without a value"));
    }
    all.push_back({stored, std::move(item.tensor)});
  }
  return absl::OkStatus();
}

uint64_t TrackedBytes(absl::Span<const NamedTensor> tensors) {
  uint64_t bytes = 0;
  for (const NamedTensor& item : tensors) {
    bytes += item.tensor.nbytes();
  }
  return bytes;
}

absl::Status CheckSameTensors(comm::Group& group, absl::Span<const NamedTensor> tensors) {
  plan::StableHash hash;
  absl::Status storable;
  for (const NamedTensor& item : tensors) {
    const auto spec = SpecOf(item);
    storable.Update(spec.status());
    if (spec.ok()) {
      hash.Add(spec->name).Add(Text(spec->dtype, spec->shape));
    }
  }
  DT_ASSIGN_OR_RETURN(const std::optional<int> other,
                      FirstRankThatDiffers(group, hash.value(), "tracked tensors"));
  DT_RETURN_IF_ERROR(storable);
  if (!other.has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "Checkpointer::Track got other tensors on rank %d than on rank 0; track tensors of the same "
      "names, types and shapes in the same order on every rank",
      *other));
}

absl::Status AddTrackedTensors(absl::Span<const NamedTensor> tensors, const RankPlace& place,
                               EngineSnapshot& snapshot) {
  const at::NoGradGuard no_grad;
  const uint64_t total = TrackedBytes(tensors);
  uint64_t before = 0;
  for (const NamedTensor& item : tensors) {
    DT_ASSIGN_OR_RETURN(checkpoint::TensorSpec spec, SpecOf(item));
    // All tensors, one after the other, are cut into as many parts as ranks. The part in which a
    // tensor begins decides who stores it.
    const double begin = total == 0 ? 0 : static_cast<double>(before) / static_cast<double>(total);
    before += item.tensor.nbytes();
    if (static_cast<int>(begin * place.world_size) != place.rank) {
      continue;
    }
    const at::Tensor tensor = item.tensor.detach();
    const bool on_device = snapshot.Leaves(tensor);
    const at::Tensor kept = on_device ? tensor : OnHost(tensor.contiguous(), snapshot);
    snapshot.keep.push_back(kept);
    snapshot.source.state.push_back({std::move(spec), BytesOf(kept),
                                     StayOf(tensor, kept, checkpoint::BytesStay::kUntilStep),
                                     on_device});
  }
  return absl::OkStatus();
}

absl::Status ReadTrackedTensors(absl::Span<const NamedTensor> tensors, RestoreReads& reads,
                                std::set<std::string>& read) {
  const at::NoGradGuard no_grad;
  const checkpoint::Checkpoint& from = reads.from();
  std::map<std::string, std::pair<int, checkpoint::TensorEntry>> stored;
  for (int rank = 0; !tensors.empty() && rank < from.manifest().world_size; ++rank) {
    for (const checkpoint::TensorEntry& entry : from.StateTensors(rank)) {
      stored.emplace(entry.name, std::pair(rank, entry));
    }
  }
  for (const NamedTensor& item : tensors) {
    const auto found = stored.find(item.name);
    DT_ASSIGN_OR_RETURN(const checkpoint::TensorSpec want, SpecOf(item));
    if (found == stored.end()) {
      continue;
    }
    const checkpoint::TensorEntry& entry = found->second.second;
    const std::string held = Text(checkpoint::DTypeFromSafetensors(entry.dtype), entry.shape);
    if (const std::string wanted = Text(want.dtype, want.shape); held != wanted) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s holds the tensor \"%s\" as %s, and the program tracks %s: track one of that type and "
          "shape, or start anew with --fresh",
          from.DisplayName(), item.name, held, wanted));
    }
  }
  for (const NamedTensor& item : tensors) {
    const auto found = stored.find(item.name);
    if (found == stored.end() && read.contains(item.name)) {
      return absl::UnavailableError(absl::StrFormat(
          "%s holds no tensor \"%s\", which a damaged checkpoint after it has overwritten: start "
          "the run again, and it goes on from this one",
          from.DisplayName(), item.name));
    }
    if (found == stored.end()) {
      DT_LOG(Warning) << from.DisplayName() << " holds no tensor \"" << item.name
                      << "\": it starts as new";
      continue;
    }
    DT_ASSIGN_OR_RETURN(const checkpoint::TensorSpec spec, SpecOf(item));
    DT_RETURN_IF_ERROR(reads.State(found->second.first, spec, 0, item.tensor.detach()));
    read.insert(item.name);
  }
  return absl::OkStatus();
}

}  // namespace dtrain
