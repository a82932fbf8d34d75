// Chooses the device on which a rank trains, from facts that every rank knows. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dl/cuda_versions.h"

namespace dtrain {

// The facts that a rank found on its machine.
struct GpuFacts {
  bool driver = false;   // An NVIDIA driver is loaded.
  int gpus = 0;          // GPUs that this process sees (CUDA_VISIBLE_DEVICES).
  std::string why_none;  // When there is a driver and no GPU; WhyNoGpu.
  int local_rank = 0;
};

// Why a machine with a driver gives no GPU, and what to do: `versions` where they say it, else
// `error`, CUDA's own.
std::string WhyNoGpu(const absl::Status& error, const CudaVersions& versions);

struct DeviceChoice {
  bool cuda = false;
  int index = 0;
};

// `wish`: "auto", "cpu" or "cuda". A process that sees several GPUs takes that of its local rank,
// counted round when there are fewer; one that the launcher bound to one GPU takes that.
// FailedPrecondition: "cuda" without a driver or without a GPU.
absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view wish, const GpuFacts& facts);

// InvalidArgument unless a GPU of this name and compute capability (80: sm_80; 0: unknown, which
// passes) multiplies 8-bit floating point.
absl::Status CheckFp8Units(absl::string_view name, int compute_capability);

// The device that a rank took, which it sends to the others as bytes.
struct RankDevice {
  uint64_t node = 0;   // Equal on ranks of one node.
  char uuid[16] = {};  // The GPU's; zeros on the CPU.
  int32_t cuda = 0;
  int32_t nccl = 0;  // NCCL can be opened.
};

enum class DeviceTransport { kNone, kNccl, kStaged };

// How the gradients of `ranks` travel: NCCL when every rank has a GPU of its own and NCCL; staged
// through host memory otherwise, or when a rank is alone; none on CPUs. FailedPrecondition names
// the first rank that has a GPU where another has none, or the other way round.
absl::StatusOr<DeviceTransport> ChooseTransport(const std::vector<RankDevice>& ranks);

}  // namespace dtrain
