#include "runtime/device/choose_device.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain {
namespace {

bool SameGpu(const RankDevice& a, const RankDevice& b) {
  return a.node == b.node && std::memcmp(a.uuid, b.uuid, sizeof(a.uuid)) == 0;
}

}  // namespace

std::string WhyNoGpu(const absl::Status& error, const CudaVersions& versions) {
  const absl::Status usable = CheckCudaVersions(versions);
  return std::string((usable.ok() ? error : usable).message());
}

absl::StatusOr<DeviceChoice> ChooseDevice(absl::string_view wish, const GpuFacts& facts) {
  if (wish == "cpu" || (wish == "auto" && facts.gpus == 0)) {
    return DeviceChoice{};
  }
  if (!facts.driver) {
    return absl::FailedPreconditionError(
        "device is \"cuda\" and no NVIDIA driver is loaded on this machine: load it, run where "
        "there is a GPU, or set device to \"cpu\"");
  }
  if (facts.gpus == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("device is \"cuda\" and ", facts.why_none, "; or set device to \"cpu\""));
  }
  return DeviceChoice{.cuda = true, .index = facts.local_rank % facts.gpus};
}

absl::Status CheckFp8Units(absl::string_view name, int compute_capability) {
  constexpr int kFirst = 89;
  return compute_capability == 0 || compute_capability >= kFirst
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrFormat(
                   "fp8.enabled needs a GPU with FP8 units (sm_89 or later: Ada, Hopper, "
                   "Blackwell); %s is sm_%d: set fp8.enabled=false",
                   name, compute_capability));
}

absl::StatusOr<DeviceTransport> ChooseTransport(const std::vector<RankDevice>& ranks) {
  bool own_gpus = true;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].cuda != ranks[0].cuda) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "rank %d trains on %s and rank 0 on %s: run all ranks where there are GPUs, or set "
          "device to \"cpu\"",
          i, ranks[i].cuda != 0 ? "a GPU" : "the CPU", ranks[0].cuda != 0 ? "a GPU" : "the CPU"));
    }
    own_gpus = own_gpus && ranks[i].nccl != 0;
    for (size_t other = 0; other < i && own_gpus; ++other) {
      own_gpus = !SameGpu(ranks[i], ranks[other]);
    }
  }
  if (ranks.empty() || ranks[0].cuda == 0) {
    return DeviceTransport::kNone;
  }
  return own_gpus && ranks.size() > 1 ? DeviceTransport::kNccl : DeviceTransport::kStaged;
}

}  // namespace dtrain
