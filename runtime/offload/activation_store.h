// A store in far memory for the tensors that recomputed segments (<dtrain/recompute.h>) keep of
// forward until backward wants them. It has two forms: for a model on the host
// (host_activations.h) and for one on a GPU (device_activations.h).
//
// Bits, strides and so every number are those of a tensor that stayed. Near memory is bounded: the
// few tensors that wait to be written, and those read ahead, last in first out. A tensor
// that the tier cannot take stays near, and one that it cannot give back is zeros. Both errors are
// in status(), because none can leave the operation that is under way. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "dtrain/config.h"
#include "runtime/device/device.h"

namespace dtrain {

class ActivationStore {
 public:
  // One tensor in the store. Its place there is free when the last owner drops it.
  class Kept {
   public:
    virtual ~Kept() = default;
  };

  // Null when `config` asks for none. A store of equal settings for the same device that is still
  // in use is shared. It becomes Current(). It may outlive `device`. NotFound and PermissionDenied
  // name setting and folder, Internal what a GPU does not have.
  static absl::StatusOr<std::shared_ptr<ActivationStore>> For(
      const ActivationCheckpointingConfig& config, const Device& device);
  // The one made last, while it is in use; null when there is none.
  static std::shared_ptr<ActivationStore> Current();

  ActivationStore(const ActivationStore&) = delete;
  ActivationStore& operator=(const ActivationStore&) = delete;
  virtual ~ActivationStore() = default;

  // Whether Put takes `tensor`: an intermediate result of the graph, dense, where the model is, and
  // large enough to be worth the way. Tensors that the graph does not differentiate (token ids,
  // tables) are held by others anyway.
  bool Takes(const at::Tensor& tensor) const;
  // Checks a tensor that Put does not take. InvalidArgument: it is on a device that is neither the
  // engine's nor the host, so that the tier would have no effect. A large tensor that must stay
  // only because of its strides is logged once.
  absl::Status LeaveNear(const at::Tensor& tensor);
  // Starts to write `tensor`, which must not change until it is dropped. REQUIRES: Takes(tensor).
  virtual std::shared_ptr<Kept> Put(const at::Tensor& tensor) = 0;
  // The tensor again, outside any graph; starts to read those that were put before it. May be
  // called again.
  virtual at::Tensor Get(const std::shared_ptr<Kept>& kept) = 0;

  // Blocks until all that was begun is done.
  virtual void Settle() = 0;

  // First failure of the tier.
  virtual absl::Status status() const = 0;
  // Bytes in the far tier at present; the most since the last call of TakePeakFarBytes.
  virtual int64_t far_bytes() const = 0;
  virtual int64_t TakePeakFarBytes() = 0;
  // Whether BytesInUse (memory/memory_in_use.h) counts what is far.
  virtual bool in_counted_memory() const = 0;

 protected:
  explicit ActivationStore(const ActivationCheckpointingConfig& config) : config_(config) {}
  // Whether `tensor` is where the model is.
  virtual bool IsNear(const at::Tensor& tensor) const = 0;
  virtual bool Serves(const Device& device) const = 0;
  const ActivationCheckpointingConfig& config() const { return config_; }

 private:
  const ActivationCheckpointingConfig config_;
  std::atomic<bool> said_near_{false};
};

}  // namespace dtrain
