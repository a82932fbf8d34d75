#include "tests/runtime/checkpoint/state_digest.h"

#include <algorithm>
#include <cstring>

#include "ATen/ATen.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "runtime/checkpoint/restore/stored_state.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain::testing {

uint64_t StatesDigest(const EngineState& state, int rank) {
  uint64_t digest = 0;
  if (state.shards == nullptr && rank > 0) {
    return digest;  // Every rank has all.
  }
  const int64_t total = state.flat->layout().total_elements();
  uint64_t salt = 1;
  for (const auto& [name, tensor] : UpdateState(state)) {
    salt += 1'000'003;
    const auto* const bytes = static_cast<const char*>(tensor.const_data_ptr());
    const auto width = static_cast<size_t>(tensor.itemsize());
    for (const plan::OwnedRange& range : state.owned) {
      for (int64_t i = range.flat.begin; i < std::min(range.flat.end, total); ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, bytes + static_cast<size_t>(range.local_of(i)) * width, width);
        digest += (bits + salt) * (static_cast<uint64_t>(i) * 2 + 1);
      }
    }
  }
  return digest;
}

absl::StatusOr<uint32_t> WeightsDigest(Engine& engine, const torch::nn::Module& model) {
  uint32_t weights = 0;
  DT_RETURN_IF_ERROR(engine.WithParameters([&] {
    for (const at::Tensor& parameter : model.parameters()) {
      weights = Crc32c(parameter.const_data_ptr(), parameter.nbytes(), weights);
    }
  }));
  return weights;
}

}  // namespace dtrain::testing
