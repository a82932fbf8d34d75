#include "runtime/offload/offload_options.h"

namespace dtrain {

OffloadOptions OffloadOptionsOf(const Config& config) {
  const std::string section = "zero_optimization.offload_optimizer.";
  const auto device = config.Find(section + "device")->get<std::string>();
  OffloadOptions options;
  options.device = device == "cpu"    ? OffloadOptions::Device::kMemory
                   : device == "nvme" ? OffloadOptions::Device::kFile
                                      : OffloadOptions::Device::kNone;
  if (options.device == OffloadOptions::Device::kFile) {
    options.folder = config.Find(section + "nvme_path")->get<std::string>();
  }
  options.buffers = config.Find(section + "buffer_count")->get<int>();
  return options;
}

absl::StatusOr<FarState> MakeFarState(const OffloadOptions& options, int64_t elements,
                                      at::ScalarType type, float value) {
  return options.device == OffloadOptions::Device::kFile
             ? FarState::InFile(options.folder, elements, type, value)
             : FarState::InMemory(elements, type, value);
}

}  // namespace dtrain
