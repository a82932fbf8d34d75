// NVML (libnvidia-ml.so.1, part of NVIDIA's driver) opened at run time: which GPUs a node has, how
// they are linked, and their state.
//
// The few types are declared here after NVML's public ABI, so that neither nvml.h nor the library
// is needed to build. Thread-safe, as NVML is.
#pragma once

#include <cstdint>
#include <memory>
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
};
}  // namespace nvml

struct NvmlLink {
  unsigned link = 0;
  std::string remote_pci;  // "0000:1b:00.0", in lower case; "" when the driver does not say.
};

struct NvmlGpu {
  int index = 0;  // Index in NVML's order, which is PCI order.
  std::string name;
  std::string uuid;
  std::string pci;  // "0000:1b:00.0", in lower case.
  uint64_t memory_total_bytes = 0;
  uint64_t memory_free_bytes = 0;
  std::vector<NvmlLink> links;  // The active NVLinks.
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
  std::vector<NvmlLink> ReadLinks(nvml::Device* device);
  const nvml::Functions functions_;
};

// "00000000:1B:00.0" (NVML, eight digits of domain) as sysfs writes it: "0000:1b:00.0".
std::string NormalisePci(const std::string& bus_id);

}  // namespace dtrain
