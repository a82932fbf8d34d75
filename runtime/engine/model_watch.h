// Whether a program has changed its model behind an engine's back: what the module has registered,
// and where its tensors are. Not thread-safe.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "runtime/model/registered_tensors.h"
#include "runtime/optimizer/engine_state.h"

namespace dtrain {

class ModelWatch {
 public:
  // REQUIRES: both outlive this object; `state` keeps the tensors of `module` alive.
  ModelWatch(const torch::nn::Module& module, const EngineState& state)
      : module_(module), state_(state), parameters_(module, RegisteredTensors::Kind::kParameters) {}

  // Buffers have the types and places that they are to keep.
  void NoteBuffers() { buffers_.emplace(module_, RegisteredTensors::Kind::kBuffers); }
  // FailedPrecondition names a parameter or a buffer that the program has changed.
  absl::Status CheckUnchanged() const;

 private:
  const torch::nn::Module& module_;
  const EngineState& state_;
  const RegisteredTensors parameters_;
  std::optional<RegisteredTensors> buffers_;
};

}  // namespace dtrain
