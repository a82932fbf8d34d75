#include "runtime/offload/activation_store.h"

#include <mutex>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/offload/device_activations.h"
#include "runtime/offload/host_activations.h"

namespace dtrain {
namespace {

constexpr int64_t kBytesMin = 4096;
constexpr uintptr_t kMemoryAlign = 64;  // LibTorch's least: kernels may be chosen by it.

struct CurrentStore {
  static CurrentStore& The() {
    static auto* const current = new CurrentStore;
    return *current;
  }
  std::mutex mutex;
  std::weak_ptr<ActivationStore> store;
};

bool SameTier(const ActivationCheckpointingConfig& a, const ActivationCheckpointingConfig& b) {
  return a.tier == b.tier && a.nvme_path == b.nvme_path && a.wait_written == b.wait_written;
}

// Whether the graph computed `tensor` and it is large enough for the way to the tier.
bool IsLargeActivation(const at::Tensor& tensor) {
  return tensor.requires_grad() && !tensor.is_leaf() &&
         static_cast<int64_t>(tensor.nbytes()) >= kBytesMin;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ActivationStore>> ActivationStore::For(
    const ActivationCheckpointingConfig& config, const Device& device) {
  if (config.tier == ActivationCheckpointingConfig::Tier::kNone) {
    return std::shared_ptr<ActivationStore>();
  }
  CurrentStore& current = CurrentStore::The();
  std::lock_guard lock(current.mutex);
  std::shared_ptr<ActivationStore> store = current.store.lock();
  if (store != nullptr && SameTier(store->config_, config) && store->Serves(device)) {
    return store;
  }
  if (device.is_host()) {
    DT_ASSIGN_OR_RETURN(store, HostActivations::Create(config));
  } else {
    DT_ASSIGN_OR_RETURN(store, DeviceActivations::Create(config, device));
  }
  current.store = store;
  return store;
}

std::shared_ptr<ActivationStore> ActivationStore::Current() {
  CurrentStore& current = CurrentStore::The();
  std::lock_guard lock(current.mutex);
  return current.store.lock();
}

bool ActivationStore::Takes(const at::Tensor& tensor) const {
  return IsLargeActivation(tensor) && IsNear(tensor) && tensor.layout() == at::kStrided &&
         !tensor.is_inference() && tensor.is_non_overlapping_and_dense() &&
         reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kMemoryAlign == 0;
}

absl::Status ActivationStore::LeaveNear(const at::Tensor& tensor) {
  if (!IsNear(tensor) && !tensor.device().is_cpu()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "an input of a recomputed segment is on %s, which is not where the engine trains, and "
        "cannot go to a far tier: remove activation_checkpointing.cpu_checkpointing and nvme_path, "
        "or keep the whole model where the engine trains",
        tensor.device().str()));
  }
  if (IsNear(tensor) && IsLargeActivation(tensor) && !said_near_.exchange(true)) {
    DT_LOG(Warning) << "an input of a recomputed segment stays in memory: " << tensor.nbytes()
                    << " bytes that are not dense or not at a multiple of " << kMemoryAlign
                    << "; hand over contiguous() ones (said once)";
  }
  return absl::OkStatus();
}

}  // namespace dtrain
