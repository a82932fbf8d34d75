// What recomputed segments keep of forward (<dtrain/recompute.h>), in a far tier until backward
// wants it: a second host buffer for each tensor, or one file without a name, which grows to what a
// forward keeps. One thread writes behind forward and reads ahead of backward, last in first out.
//
// Bits, strides and so every number are those of a tensor that stayed. Near memory is bounded: the
// few tensors that wait to be written, and those read ahead. What the tier cannot take stays near,
// and what it cannot give back is zeros; both leave status(), because no error can leave the
// operation that is under way. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "base/worker.h"
#include "dtrain/config.h"

namespace dtrain {

class ActivationStore {
 public:
  // One tensor in the store. Its place there is free when the last owner drops it.
  class Kept;

  // Null when `config` asks for none. A store of equal settings that is still in use is shared. It
  // becomes Current(). NotFound and PermissionDenied name setting and folder.
  static absl::StatusOr<std::shared_ptr<ActivationStore>> For(
      const ActivationCheckpointingConfig& config);
  // The one made last, while it is in use; null when there is none.
  static std::shared_ptr<ActivationStore> Current();

  ~ActivationStore();

  // Whether Put takes `tensor`: an intermediate result of the graph, dense, on the CPU, and large
  // enough to be worth the way. What the graph does not differentiate (token ids, tables) is held
  // by others anyway.
  static bool Takes(const at::Tensor& tensor);
  // Of a tensor that Put does not take: InvalidArgument when it is not on the CPU, where the tier
  // would be without effect; what is large and only laid out so that it must stay is said once.
  absl::Status LeaveNear(const at::Tensor& tensor);
  // Starts to write `tensor`, which must not change until it is dropped. Blocks while the thread is
  // several tensors behind. REQUIRES: Takes(tensor).
  std::shared_ptr<Kept> Put(const at::Tensor& tensor);
  // The tensor again, outside any graph; starts to read those that were put before it. Blocks until
  // it is here. May be called again.
  at::Tensor Get(const std::shared_ptr<Kept>& kept);

  // Blocks until the thread has done what it was given and holds none of it.
  void Settle();

  // First failure of the tier.
  absl::Status status() const;
  // Bytes in the far tier at present; the most since the last call of TakePeakFarBytes.
  int64_t far_bytes() const;
  int64_t TakePeakFarBytes();
  // Whether the far tier is memory of this process.
  bool in_memory() const { return config_.tier == ActivationCheckpointingConfig::Tier::kMemory; }

 private:
  class Tier;
  ActivationStore(const ActivationCheckpointingConfig& config, std::shared_ptr<Tier> tier);
  void StartReading(const std::shared_ptr<Kept>& kept);

  const ActivationCheckpointingConfig config_;
  const std::shared_ptr<Tier> tier_;  // What is kept owns it too; this object only its users do.
  std::atomic<bool> said_near_{false};
  Worker worker_;  // Last: its thread ends first.
};

}  // namespace dtrain
