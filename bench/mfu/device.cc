#include "bench/mfu/device.h"

#include "absl/strings/str_cat.h"
#include "base/dl/cuda_versions.h"
#include "base/provenance.h"

namespace dtrain::bench {

absl::Status CheckDevice(const std::string& name) {
  const absl::Status usable =
      name == "cpu" ? absl::OkStatus() : CheckCudaVersions(ReadCudaVersions());
  return usable.ok() ? usable
                     : absl::Status(usable.code(), absl::StrCat("--device cuda: ", usable.message(),
                                                                "; or use --device cpu"));
}

BenchDevice DeviceOf(const Job& job) {
  const at::Device device = job.device();
  if (device.is_cpu()) {
    return {device, CpuName()};
  }
  // The driver counts as the job does: those that CUDA_VISIBLE_DEVICES shows.
  const CudaVersions versions = ReadCudaVersions();
  const size_t index = static_cast<unsigned char>(device.index());
  return {device, index < versions.names.size() ? versions.names[index] : "a GPU without a name"};
}

}  // namespace dtrain::bench
