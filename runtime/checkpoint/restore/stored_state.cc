#include "runtime/checkpoint/restore/stored_state.h"

#include "ATen/Functions.h"

namespace dtrain {
namespace {

constexpr char kBuffer[] = "buffer.";  // Before the name of a module's buffer that each rank keeps.

}  // namespace

std::string StoredPrefix(const std::string& engine) { return engine.empty() ? "" : engine + "/"; }

std::vector<NamedTensor> UpdateState(const EngineState& state) {
  std::vector<NamedTensor> all;
  for (const StateSlot& slot : state.optimizer.slots) {
    all.push_back({slot.name, slot.tensor});
  }
  if (state.optimizer.master.defined()) {
    all.push_back({kStoredMaster, state.optimizer.master});
  }
  return all;
}

DType StoredStateType(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16;
}

at::Tensor MissedUpdates(const EngineState& state) {
  return at::tensor(at::IntArrayRef(state.progress.missed), at::TensorOptions(at::kLong));
}

std::vector<NamedTensor> OwnBuffers(const EngineState& state, const RankPlace& place) {
  std::vector<NamedTensor> own;
  if (state.local_buffers && place.world_size > 1) {
    for (const NamedTensor& buffer : state.flat->module_buffers()) {
      own.push_back({kBuffer + buffer.name, buffer.tensor});
    }
  }
  return own;
}

const Json* RecordOf(const Json& records, const std::string& engine) {
  if (engine.empty()) {
    return &records;
  }
  const auto engines = records.find("engines");
  if (engines == records.end() || !engines->is_object()) {
    return nullptr;
  }
  const auto found = engines->find(engine);
  return found == engines->end() || !found->is_object() ? nullptr : &*found;
}

}  // namespace dtrain
