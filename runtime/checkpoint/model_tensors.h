// The whole tensors of a checkpoint's model/ folder, from an engine's memory and back.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/state_source.h"
#include "runtime/checkpoint/engine_snapshot.h"
#include "runtime/checkpoint/restore/restore_reads.h"
#include "runtime/checkpoint/restore/stored_weights.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

// The memory of a contiguous tensor.
absl::Span<std::byte> BytesOf(const at::Tensor& tensor);

// Until when `kept`, which OnHost gave of `tensor`, has its content: for as long as the snapshot if
// it is a copy, else until `changes`.
checkpoint::BytesStay StayOf(const at::Tensor& tensor, const at::Tensor& kept,
                             checkpoint::BytesStay changes);

// A contiguous copy in pinned memory of what is on a GPU, kept alive by `snapshot`; else `tensor`
// itself, contiguous. The copy is only queued: it is whole when the compute stream has come there.
at::Tensor OnHost(const at::Tensor& tensor, EngineSnapshot& snapshot);

// Unimplemented names a tensor of the model that no checkpoint can hold (complex numbers): found at
// the start, not at the first restore.
absl::Status CheckStorable(const EngineState& state);

// One tensor of model/.
struct StoredTensor {
  std::string name;         // Public.
  std::string module_name;  // In the module.
  at::Tensor tensor;
  // The place of a rank's share of it at ZeRO stage 3; none: it is whole on every rank.
  struct Shared {
    const plan::LayoutEntry* entry = nullptr;
    size_t index = 0;  // Number of the entry in the layout.
    bool frozen = false;
  };
  std::optional<Shared> shared = {};
  bool is_buffer = false;  // Ranks may have others; rank 0's count.
  bool is_updated = true;  // Only updates change it; else the program may at any time.
};
// Everything that model/ holds, in one order on every rank.
std::vector<StoredTensor> StoredTensors(const EngineState& state);
// The same by other names than EngineOptions::public_name gives, with frozen parameters or without.
std::vector<StoredTensor> StoredTensors(
    const EngineState& state, const std::function<std::string(const std::string&)>& public_name,
    bool with_frozen);

// Runs `function` while the tensor is whole: a collective where it is shared out.
absl::Status WithWhole(const EngineState& state, const StoredTensor& item,
                       absl::FunctionRef<void()> function);

// Runs `function`, whose operations find weights that are shared out as updates know them, not
// rounded by quantised gathers: collective there, and no part of what the next pass gathers ahead.
absl::Status WithExactReads(const EngineState& state, absl::FunctionRef<void()> function);

// The tensors of model/ that one rank writes, for one snapshot of an engine after the other. Their
// names, and who writes which, do not change.
class WrittenModel {
 public:
  // `prefix` stands before public names. REQUIRES: `state` outlives this object.
  WrittenModel(const EngineState& state, RankPlace place, const std::string& prefix);
  // Adds them as they are now. At ZeRO stage 3 a collective, unless the snapshot is staged: each
  // tensor is gathered in turn, and its writer keeps a copy.
  absl::Status AddTo(EngineSnapshot& snapshot);

 private:
  struct Item {
    StoredTensor stored;
    bool is_mine = false;  // Else it is gathered for others.
    // The entry that the last snapshot has, of the type `type` of LibTorch.
    checkpoint::NamedTensor last;
    at::ScalarType type = at::ScalarType::Undefined;
  };

  // Leaves the gather of the tensor to who stages the snapshot.
  absl::Status AddGather(Item& item, EngineSnapshot& snapshot) const;
  // Whether `item.last` still names the memory of the tensor itself, so that a snapshot need not go
  // through LibTorch for it. The program may have given a tensor other memory, or another shape.
  static bool IsUnchanged(const Item& item);

  const EngineState& state_;
  const RankPlace place_;
  std::vector<Item> items_;
  int64_t copied_bytes_ = 0;  // The bytes of gathered tensors that this rank writes.
};

// The tensors of a model that are read.
enum class ModelPart {
  kAll,
  kNotUpdated,  // Frozen parameters and buffers: the weights that updates change come from masters.
};
// Asks for every tensor of `part`; at ZeRO stage 3 for this rank's part of each. `prefix` stands
// before their public names. Nothing may read the weights between this call and FinishModel. Adds
// the tensors that are stored in another type to `converted`.
absl::Status ReadModel(EngineState& state, const std::string& prefix, ModelPart part,
                       RestoreReads& reads, Conversions& converted);
// Asks for the weights that the masters of mixed precision begin with, as they are stored and not
// as weights are rounded.
absl::Status ReadMasters(EngineState& state, const std::string& prefix, RestoreReads& reads);
// The tensors of model/ as the program has them.
absl::StatusOr<std::vector<checkpoint::TensorSpec>> ModelSpecs(const EngineState& state);
// Brings up to date what follows from the weights that were read: at ZeRO stage 3 a collective.
absl::Status FinishModel(EngineState& state);

}  // namespace dtrain
