#include "bench/mfu/device.h"

#include <fstream>

#include "base/status.h"
#include "bench/mfu/cuda_versions.h"

namespace dtrain::bench {
namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "a CPU without a name";
}

}  // namespace

absl::StatusOr<BenchDevice> ChooseDevice(const std::string& name, int /*local_rank*/) {
  if (name == "cpu") {
    return BenchDevice{at::kCPU, CpuName()};
  }
  DT_RETURN_IF_ERROR(CheckCudaVersions(ReadCudaVersions()));
  return absl::UnimplementedError(
      "--device cuda: the engine trains on CPU tensors; use --device cpu");
}

}  // namespace dtrain::bench
