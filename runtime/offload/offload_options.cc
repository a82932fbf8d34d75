#include "runtime/offload/offload_options.h"

namespace dtrain {

namespace {

OffloadOptions OptionsOf(const Config& config, const std::string& section) {
  const auto device = config.Find(section + "device")->get<std::string>();
  OffloadOptions options;
  options.device = device == "cpu"    ? OffloadOptions::Device::kMemory
                   : device == "nvme" ? OffloadOptions::Device::kFile
                                      : OffloadOptions::Device::kNone;
  if (options.device == OffloadOptions::Device::kFile) {
    options.setting = section + "nvme_path";
    options.folder = config.Find(options.setting)->get<std::string>();
  }
  options.buffers = config.Find(section + "buffer_count")->get<int>();
  return options;
}

}  // namespace

OffloadOptions OptimizerOffload(const Config& config) {
  return OptionsOf(config, "zero_optimization.offload_optimizer.");
}
OffloadOptions ParameterOffload(const Config& config) {
  return OptionsOf(config, "zero_optimization.offload_param.");
}

absl::StatusOr<FarState> MakeFarState(const OffloadOptions& options, int64_t elements,
                                      at::ScalarType type, float value) {
  return options.device == OffloadOptions::Device::kFile
             ? FarState::InFile(options.folder, elements, type, value, options.setting)
             : FarState::InMemory(elements, type, value);
}

}  // namespace dtrain
