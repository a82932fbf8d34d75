// NVML (libnvidia-ml.so.1, part of NVIDIA's driver) opened at run time: which GPUs a node has, how
// they are linked, and their state.
//
// The few types are declared here after NVML's public ABI, so that neither nvml.h nor the library
// is needed to build. Thread-safe, as NVML is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dl/dynamic_library.h"

namespace dtrain {

namespace nvml {
// NVML's own names and layouts (NVML API reference, version 12 and 13).
struct Device;  // nvmlDevice_t points to it.
enum Return : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNoPermission = 4,
  kGpuIsLost = 15,
};
enum EnableState : int { kDisabled = 0, kEnabled = 1 };
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct PciInfo {
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_sub_system_id;
  char bus_id[32];
};
inline constexpr unsigned kNvLinksMax = 18;
inline constexpr unsigned kNvLinkErrorCounters = 5;
struct GpuFabricInfo {
  unsigned char cluster_uuid[16];
  Return status;
  unsigned int clique_id;
  unsigned char state;  // 0 not supported, 1 not started, 2 in progress, 3 completed.
};

// The functions by NVML's names; a test's fake fills in its own.
struct Functions {
  Return (*init)();
  Return (*shutdown)();
  const char* (*error_string)(Return);
  Return (*system_get_driver_version)(char* version, unsigned length);
  Return (*device_get_count)(unsigned* count);
  Return (*device_get_handle_by_index)(unsigned index, Device** device);
  Return (*device_get_name)(Device* device, char* name, unsigned length);
  Return (*device_get_uuid)(Device* device, char* uuid, unsigned length);
  Return (*device_get_pci_info)(Device* device, PciInfo* info);
  Return (*device_get_memory_info)(Device* device, Memory* memory);
  Return (*device_get_nvlink_state)(Device* device, unsigned link, EnableState* state);
  Return (*device_get_nvlink_remote_pci_info)(Device* device, unsigned link, PciInfo* info);
  Return (*system_get_cuda_driver_version)(int* version);  // Null: an old library lacks it.

  // The state of a GPU. Null: an old library lacks the function.
  Return (*device_get_cuda_compute_capability)(Device* device, int* major, int* minor);
  Return (*device_get_temperature)(Device* device, int sensor, unsigned* celsius);
  Return (*device_get_curr_pcie_link_generation)(Device* device, unsigned* generation);
  Return (*device_get_curr_pcie_link_width)(Device* device, unsigned* width);
  Return (*device_get_max_pcie_link_generation)(Device* device, unsigned* generation);
  Return (*device_get_max_pcie_link_width)(Device* device, unsigned* width);
  Return (*device_get_total_ecc_errors)(Device* device, int type, int counter,
                                        unsigned long long* count);
  Return (*device_get_remapped_rows)(Device* device, unsigned* corrected, unsigned* uncorrected,
                                     unsigned* is_pending, unsigned* has_failed);
  Return (*device_get_current_clocks_throttle_reasons)(Device* device, unsigned long long* bits);
  Return (*device_get_nvlink_error_counter)(Device* device, unsigned link, unsigned counter,
                                            unsigned long long* count);
  Return (*device_get_gpu_fabric_info)(Device* device, GpuFabricInfo* info);
};
}  // namespace nvml

struct NvmlLink {
  unsigned link = 0;
  std::string remote_pci;  // "0000:1b:00.0", in lower case; "" when the driver does not say.
};

// The state of a GPU. No value: this GPU or driver does not say.
struct NvmlHealth {
  std::optional<int> temperature_c;
  std::optional<int> pcie_generation;
  std::optional<int> pcie_width;
  std::optional<int> pcie_generation_max;
  std::optional<int> pcie_width_max;
  std::optional<uint64_t> ecc_corrected;  // Since the driver was loaded.
  std::optional<uint64_t> ecc_uncorrected;
  std::optional<int> remapped_rows;  // Rows of memory replaced after errors.
  std::optional<bool> remap_pending;
  std::optional<bool> remap_failed;
  std::optional<uint64_t> throttle_reasons;  // NVML's bits.
  std::optional<uint64_t> nvlink_errors;     // Sum over active links: CRC, replay, recovery, ECC.
  std::optional<std::string> fabric_state;   // The NVSwitches' state: "completed", ...
  std::optional<int> nvlinks_down;           // Links that exist and are not active.
};

struct NvmlGpu {
  int index = 0;  // Index in NVML's order, which is PCI order.
  std::string name;
  std::string uuid;
  std::string pci;  // "0000:1b:00.0", in lower case.
  uint64_t memory_total_bytes = 0;
  uint64_t memory_free_bytes = 0;
  std::vector<NvmlLink> links;  // The active NVLinks.
  int compute_capability = 0;   // 90 for 9.0; 0: unknown.
  NvmlHealth health;
};

class Nvml {
 public:
  // NotFound when the library is missing; Unavailable when it cannot be initialised (no driver, no
  // permission), with NVML's reason.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open();
  // An object over given functions: the seam for tests.
  static absl::StatusOr<std::unique_ptr<Nvml>> Over(const nvml::Functions& functions);
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml();

  absl::StatusOr<std::string> DriverVersion();
  // The newest CUDA that the driver supports (13000: 13.0); 0: unknown.
  int CudaDriverVersion();
  // All GPUs. An error names the GPU; values that a GPU does not support are left empty.
  absl::StatusOr<std::vector<NvmlGpu>> Gpus();

 private:
  explicit Nvml(const nvml::Functions& functions) : functions_(functions) {}
  absl::Status Check(nvml::Return result, const std::string& what);
  absl::StatusOr<NvmlGpu> ReadGpu(unsigned index);
  std::vector<NvmlLink> ReadLinks(nvml::Device* device, std::optional<int>* down);
  void ReadHealth(nvml::Device* device, NvmlGpu* gpu);
  void ReadLinkErrors(nvml::Device* device, NvmlGpu* gpu);
  const nvml::Functions functions_;
};

// "00000000:1B:00.0" (NVML, eight digits of domain) as sysfs writes it: "0000:1b:00.0".
std::string NormalisePci(const std::string& bus_id);

}  // namespace dtrain
