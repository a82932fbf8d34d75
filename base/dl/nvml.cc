#include "base/dl/nvml.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/dl/open_once.h"
#include "base/status.h"

namespace dtrain {
namespace {

// NVML needs at most 96 bytes (device name, version 2).
constexpr unsigned kTextBytes = 96;

// A function that the library lacks stays null.
void BindHealth(const DynamicLibrary& library, nvml::Functions* f) {
  const auto bind = [&library](const char* name, auto* function) {
    library.Bind(name, function).IgnoreError();
  };
  bind("nvmlDeviceGetCudaComputeCapability", &f->device_get_cuda_compute_capability);
  bind("nvmlDeviceGetTemperature", &f->device_get_temperature);
  bind("nvmlDeviceGetCurrPcieLinkGeneration", &f->device_get_curr_pcie_link_generation);
  bind("nvmlDeviceGetCurrPcieLinkWidth", &f->device_get_curr_pcie_link_width);
  bind("nvmlDeviceGetMaxPcieLinkGeneration", &f->device_get_max_pcie_link_generation);
  bind("nvmlDeviceGetMaxPcieLinkWidth", &f->device_get_max_pcie_link_width);
  bind("nvmlDeviceGetTotalEccErrors", &f->device_get_total_ecc_errors);
  bind("nvmlDeviceGetRemappedRows", &f->device_get_remapped_rows);
  bind("nvmlDeviceGetCurrentClocksThrottleReasons", &f->device_get_current_clocks_throttle_reasons);
  bind("nvmlDeviceGetNvLinkErrorCounter", &f->device_get_nvlink_error_counter);
  bind("nvmlDeviceGetGpuFabricInfo", &f->device_get_gpu_fabric_info);
}

absl::StatusOr<nvml::Functions> BindNvml(const DynamicLibrary& library) {
  nvml::Functions f = {};
  DT_RETURN_IF_ERROR(library.Bind("nvmlInit_v2", &f.init));
  DT_RETURN_IF_ERROR(library.Bind("nvmlShutdown", &f.shutdown));
  DT_RETURN_IF_ERROR(library.Bind("nvmlErrorString", &f.error_string));
  DT_RETURN_IF_ERROR(library.Bind("nvmlSystemGetDriverVersion", &f.system_get_driver_version));
  DT_RETURN_IF_ERROR(library.Bind("nvmlDeviceGetCount_v2", &f.device_get_count));
  DT_RETURN_IF_ERROR(library.Bind("nvmlDeviceGetHandleByIndex_v2", &f.device_get_handle_by_index));
  DT_RETURN_IF_ERROR(library.Bind("nvmlDeviceGetName", &f.device_get_name));
  DT_RETURN_IF_ERROR(library.Bind("nvmlDeviceGetUUID", &f.device_get_uuid));
  DT_RETURN_IF_ERROR(library.Bind("nvmlDeviceGetPciInfo_v3", &f.device_get_pci_info));
  DT_RETURN_IF_ERROR(library.Bind("nvmlDeviceGetMemoryInfo", &f.device_get_memory_info));
  DT_RETURN_IF_ERROR(library.Bind("nvmlDeviceGetNvLinkState", &f.device_get_nvlink_state));
  DT_RETURN_IF_ERROR(
      library.Bind("nvmlDeviceGetNvLinkRemotePciInfo_v2", &f.device_get_nvlink_remote_pci_info));
  library.Bind("nvmlSystemGetCudaDriverVersion_v2", &f.system_get_cuda_driver_version)
      .IgnoreError();  // An older library leaves it null.
  BindHealth(library, &f);
  return f;
}

}  // namespace

std::string NormalisePci(const std::string& bus_id) {
  std::string text = absl::AsciiStrToLower(bus_id);
  const size_t colon = text.find(':');
  if (colon != std::string::npos && colon > 4) {
    text.erase(0, colon - 4);
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open() {
  DT_ASSIGN_OR_RETURN(
      const nvml::Functions* const functions,
      OpenOnce<nvml::Functions>({"libnvidia-ml.so.1"},
                                absl::NotFoundError("no NVIDIA driver library"), BindNvml));
  return Over(*functions);
}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Over(const nvml::Functions& functions) {
  const nvml::Return result = functions.init();
  if (result != nvml::kSuccess) {
    return absl::UnavailableError(
        absl::StrCat("nvmlInit_v2: ", functions.error_string(result),
                     " (is the NVIDIA driver loaded, and is this user allowed to use it?)"));
  }
  return std::unique_ptr<Nvml>(new Nvml(functions));
}

Nvml::~Nvml() { (void)functions_.shutdown(); }

absl::Status Nvml::Check(nvml::Return result, const std::string& what) {
  if (result == nvml::kSuccess) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(what, ": ", functions_.error_string(result)));
}

absl::StatusOr<std::string> Nvml::DriverVersion() {
  char text[kTextBytes] = {};
  DT_RETURN_IF_ERROR(
      Check(functions_.system_get_driver_version(text, kTextBytes), "nvmlSystemGetDriverVersion"));
  return std::string(text);
}

int Nvml::CudaDriverVersion() {
  int version = 0;
  return functions_.system_get_cuda_driver_version != nullptr &&
                 functions_.system_get_cuda_driver_version(&version) == nvml::kSuccess
             ? version
             : 0;
}

absl::StatusOr<std::vector<NvmlGpu>> Nvml::Gpus() {
  unsigned count = 0;
  DT_RETURN_IF_ERROR(Check(functions_.device_get_count(&count), "nvmlDeviceGetCount_v2"));
  std::vector<NvmlGpu> gpus;
  for (unsigned index = 0; index < count; ++index) {
    DT_ASSIGN_OR_RETURN(NvmlGpu gpu, ReadGpu(index));
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

absl::StatusOr<NvmlGpu> Nvml::ReadGpu(unsigned index) {
  const auto what = [index](const char* call) { return absl::StrCat(call, " of GPU ", index); };
  nvml::Device* device = nullptr;
  DT_RETURN_IF_ERROR(Check(functions_.device_get_handle_by_index(index, &device),
                           what("nvmlDeviceGetHandleByIndex_v2")));
  NvmlGpu gpu;
  gpu.index = static_cast<int>(index);
  char text[kTextBytes] = {};
  DT_RETURN_IF_ERROR(
      Check(functions_.device_get_name(device, text, kTextBytes), what("nvmlDeviceGetName")));
  gpu.name = text;
  DT_RETURN_IF_ERROR(
      Check(functions_.device_get_uuid(device, text, kTextBytes), what("nvmlDeviceGetUUID")));
  gpu.uuid = text;
  nvml::PciInfo pci = {};
  DT_RETURN_IF_ERROR(
      Check(functions_.device_get_pci_info(device, &pci), what("nvmlDeviceGetPciInfo_v3")));
  gpu.pci = NormalisePci(pci.bus_id);
  nvml::Memory memory = {};
  if (functions_.device_get_memory_info(device, &memory) == nvml::kSuccess) {
    gpu.memory_total_bytes = memory.total;  // Unified-memory chips answer "not supported".
    gpu.memory_free_bytes = memory.free;
  }
  gpu.links = ReadLinks(device, &gpu.health.nvlinks_down);
  ReadHealth(device, &gpu);
  ReadLinkErrors(device, &gpu);
  return gpu;
}

void Nvml::ReadHealth(nvml::Device* device, NvmlGpu* gpu) {
  constexpr int kCorrected = 0;
  constexpr int kUncorrected = 1;
  constexpr int kSinceLoaded = 0;
  constexpr int kGpuSensor = 0;
  constexpr const char* kFabricStates[] = {"not supported", "not started", "in progress",
                                           "completed"};
  const nvml::Functions& f = functions_;
  NvmlHealth& health = gpu->health;
  const auto number = [device](auto* function, std::optional<int>* value) {
    unsigned read = 0;
    if (function != nullptr && function(device, &read) == nvml::kSuccess) {
      *value = static_cast<int>(read);
    }
  };
  number(f.device_get_curr_pcie_link_generation, &health.pcie_generation);
  number(f.device_get_curr_pcie_link_width, &health.pcie_width);
  number(f.device_get_max_pcie_link_generation, &health.pcie_generation_max);
  number(f.device_get_max_pcie_link_width, &health.pcie_width_max);
  int major = 0;
  int minor = 0;
  if (f.device_get_cuda_compute_capability != nullptr &&
      f.device_get_cuda_compute_capability(device, &major, &minor) == nvml::kSuccess) {
    gpu->compute_capability = 10 * major + minor;
  }
  unsigned celsius = 0;
  if (f.device_get_temperature != nullptr &&
      f.device_get_temperature(device, kGpuSensor, &celsius) == nvml::kSuccess) {
    health.temperature_c = static_cast<int>(celsius);
  }
  const auto errors = [&](int type, std::optional<uint64_t>* value) {
    unsigned long long count = 0;
    if (f.device_get_total_ecc_errors != nullptr &&
        f.device_get_total_ecc_errors(device, type, kSinceLoaded, &count) == nvml::kSuccess) {
      *value = count;
    }
  };
  errors(kCorrected, &health.ecc_corrected);
  errors(kUncorrected, &health.ecc_uncorrected);
  unsigned corrected = 0;
  unsigned uncorrected = 0;
  unsigned pending = 0;
  unsigned failed = 0;
  if (f.device_get_remapped_rows != nullptr &&
      f.device_get_remapped_rows(device, &corrected, &uncorrected, &pending, &failed) ==
          nvml::kSuccess) {
    health.remapped_rows = static_cast<int>(corrected + uncorrected);
    health.remap_pending = pending != 0;
    health.remap_failed = failed != 0;
  }
  unsigned long long reasons = 0;
  if (f.device_get_current_clocks_throttle_reasons != nullptr &&
      f.device_get_current_clocks_throttle_reasons(device, &reasons) == nvml::kSuccess) {
    health.throttle_reasons = reasons;
  }
  nvml::GpuFabricInfo fabric = {};
  if (f.device_get_gpu_fabric_info != nullptr &&
      f.device_get_gpu_fabric_info(device, &fabric) == nvml::kSuccess && fabric.state < 4) {
    health.fabric_state = kFabricStates[fabric.state];
  }
}

void Nvml::ReadLinkErrors(nvml::Device* device, NvmlGpu* gpu) {
  if (functions_.device_get_nvlink_error_counter == nullptr) {
    return;
  }
  for (const NvmlLink& link : gpu->links) {
    for (unsigned counter = 0; counter < nvml::kNvLinkErrorCounters; ++counter) {
      unsigned long long count = 0;
      if (functions_.device_get_nvlink_error_counter(device, link.link, counter, &count) ==
          nvml::kSuccess) {
        gpu->health.nvlink_errors = gpu->health.nvlink_errors.value_or(0) + count;
      }
    }
  }
}

std::vector<NvmlLink> Nvml::ReadLinks(nvml::Device* device, std::optional<int>* down) {
  std::vector<NvmlLink> links;
  for (unsigned link = 0; link < nvml::kNvLinksMax; ++link) {
    nvml::EnableState state = nvml::kDisabled;
    if (functions_.device_get_nvlink_state(device, link, &state) != nvml::kSuccess) {
      continue;  // The link does not exist.
    }
    *down = down->value_or(0) + (state == nvml::kEnabled ? 0 : 1);
    if (state != nvml::kEnabled) {
      continue;
    }
    NvmlLink found;
    found.link = link;
    nvml::PciInfo remote = {};
    if (functions_.device_get_nvlink_remote_pci_info(device, link, &remote) == nvml::kSuccess) {
      found.remote_pci = NormalisePci(remote.bus_id);
    }
    links.push_back(std::move(found));
  }
  return links;
}

}  // namespace dtrain
