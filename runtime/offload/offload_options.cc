#include "runtime/offload/offload_options.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/optimizer/grad_norm.h"

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
  options.threads = config.Find("aio.intra_op_parallelism")->get<int>();
  return options;
}

}  // namespace

OffloadOptions OptimizerOffload(const Config& config) {
  const std::string section = "zero_optimization.offload_optimizer.";
  OffloadOptions options = OptionsOf(config, section);
  options.ratio = config.Find(section + "ratio")->get<double>();
  return options;
}
OffloadOptions ParameterOffload(const Config& config) {
  return OptionsOf(config, "zero_optimization.offload_param.");
}

int64_t NearElements(const OffloadOptions& options, int64_t elements) {
  // A page of bf16, or a block of the norm, of which a bucket's part is made.
  const int64_t unit = std::max<int64_t>(kernels::kNormBlock, sysconf(_SC_PAGESIZE) / 2);
  const auto near = static_cast<int64_t>((1 - options.ratio) * static_cast<double>(elements));
  return near / unit * unit;
}

absl::StatusOr<FarState> MakeFarState(const OffloadOptions& options, int64_t elements,
                                      at::ScalarType type, float value) {
  return options.device == OffloadOptions::Device::kFile
             ? FarState::InFile(options.folder, elements, type, value, options.setting,
                                NearElements(options, elements))
             : FarState::InMemory(elements, type, value);
}

}  // namespace dtrain
