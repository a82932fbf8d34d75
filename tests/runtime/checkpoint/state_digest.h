// Numbers that stand for the content of an engine's state, whatever the layout of ranks and shards.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "torch/nn/module.h"

namespace dtrain::testing {

// The same number for the same optimizer states on any number of ranks: each element counts with
// its place in the layout, and the ranks' numbers are added.
uint64_t StatesDigest(const EngineState& state, int rank);

// CRC-32C of all parameters of the module, frozen ones too. Collective.
absl::StatusOr<uint32_t> WeightsDigest(Engine& engine, const torch::nn::Module& model);

}  // namespace dtrain::testing
