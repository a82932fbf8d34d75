// The memory in which an engine found the tensors of its model, for the engines that are made after
// it: weights that two modules share by their memory come apart where each engine gives its own a
// place in its flat buffers, and nothing would say so.
//
// Keeps no memory alive beside that of the tensors as they are now. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "c10/core/StorageImpl.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/model/tensor_overlap.h"

namespace dtrain {

class ModelMemory {
 public:
  // For a model whose `tensors` no engine has moved yet. `owner` stands in messages, as in
  // "engine \"a\"".
  ModelMemory(std::string owner, std::vector<HeldTensor> tensors);

  // InvalidArgument names a tensor of this model and one of an engine that was made before, which
  // share memory, or did before that engine, and of which one trains; a buffer counts too, if one
  // of the two moves. A tensor that the other engine trains may be lent to this model, frozen.
  absl::Status CheckApart(const ModelMemory& earlier) const;

 private:
  struct Item {
    HeldTensor tensor;
    std::optional<Footprint> memory;  // Where it was; nothing of a tensor without memory.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  };

  const std::string owner_;
  std::vector<Item> items_;
};

}  // namespace dtrain
