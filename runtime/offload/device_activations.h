// The activation store of a rank that trains on a GPU: page-locked memory of the host, to and from
// which two streams of their own copy, since a GPU copies both ways at once.
//
// No host waits: neither Put nor Get does. A copy comes after what the compute stream held when it
// was asked for, and the compute stream waits for a copy before what it leaves behind is used: the
// tensor that was brought back, or the memory of the one that has gone, which LibTorch's allocator
// gives out anew in the order of that stream. So at most as many tensors are on their way out as
// plan::kActivationsInFlight says, however far ahead the host is. Page-locked memory is kept and
// used again, up to twice what was in use at once; only while it is made, in the first steps and
// where batches become longer, CUDA may stop the host, and what is given up for it may be waited
// for.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/offload/activation_store.h"

namespace dtrain {

class DeviceActivations final : public ActivationStore {
 public:
  // Internal: CUDA gives no stream. REQUIRES: `device` is a GPU, `config` asks for memory.
  static absl::StatusOr<std::shared_ptr<ActivationStore>> Create(
      const ActivationCheckpointingConfig& config, const Device& device);
  ~DeviceActivations() override;

  // With `wait_written` the compute stream waits at once. Tensors that come while a graph is
  // captured stay near, because a graph owns the memory of its tensors.
  std::shared_ptr<ActivationStore::Kept> Put(const at::Tensor& tensor) override;
  // The tensor is for work that is queued on the compute stream from now on.
  at::Tensor Get(const std::shared_ptr<ActivationStore::Kept>& kept) override;
  void Settle() override;
  absl::Status status() const override;
  int64_t far_bytes() const override;
  int64_t TakePeakFarBytes() override;
  bool in_counted_memory() const override { return false; }

 protected:
  bool IsNear(const at::Tensor& tensor) const override;
  bool Serves(const Device& device) const override;

 private:
  class Kept;
  class Tier;
  struct Place;
  DeviceActivations(const ActivationCheckpointingConfig& config, std::shared_ptr<Tier> tier);

  const std::shared_ptr<Tier>
      tier_;  // Each Kept owns it too; this object is owned by its users alone.
};

}  // namespace dtrain
