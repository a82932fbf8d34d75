// The activation store of a rank that trains on the host: a second host buffer for each tensor, or
// one file without a name, which grows to what a forward keeps. One thread writes behind forward
// and reads ahead of backward. Put blocks while the thread is several tensors behind, Get until the
// tensor is here.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/threads/worker.h"
#include "runtime/offload/activation_store.h"

namespace dtrain {

class HostActivations final : public ActivationStore {
 public:
  // NotFound and PermissionDenied name setting and folder. REQUIRES: config asks for a tier.
  static absl::StatusOr<std::shared_ptr<ActivationStore>> Create(
      const ActivationCheckpointingConfig& config);
  ~HostActivations() override;

  std::shared_ptr<ActivationStore::Kept> Put(const at::Tensor& tensor) override;
  at::Tensor Get(const std::shared_ptr<ActivationStore::Kept>& given) override;
  // The thread then holds none of what it was given.
  void Settle() override;
  absl::Status status() const override;
  int64_t far_bytes() const override;
  int64_t TakePeakFarBytes() override;
  bool in_counted_memory() const override {
    return config().tier == ActivationCheckpointingConfig::Tier::kMemory;
  }

 protected:
  bool IsNear(const at::Tensor& tensor) const override;
  bool Serves(const Device& device) const override { return device.is_host(); }

 private:
  class Kept;
  class Tier;
  HostActivations(const ActivationCheckpointingConfig& config, std::shared_ptr<Tier> tier);
  void StartReading(const std::shared_ptr<Kept>& kept);

  const std::shared_ptr<Tier>
      tier_;       // Each Kept owns it too; this object is owned by its users alone.
  Worker worker_;  // Last: its thread ends first.
};

}  // namespace dtrain
