#include "launcher/topology/read_pci.h"

#include <hwloc.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/topology/read_cpu.h"
#include "launcher/topology/sysfs.h"

namespace dtrain::launcher {
namespace {

using PciAttributes = hwloc_obj_attr_u::hwloc_pcidev_attr_s;

constexpr int kVendorNvidia = 0x10de;

// "0x030200" in a file of sysfs; -1 when there is none.
int ReadSysfsHex(const std::string& path) {
  const std::string text = ReadSysfs(path).value_or("");
  uint32_t value = 0;
  return absl::SimpleHexAtoi(text, &value) && value <= 0xffffff ? static_cast<int>(value) : -1;
}

std::string AddressOf(const PciAttributes& pci) {
  return absl::StrFormat("%04x:%02x:%02x.%x", pci.domain, pci.bus, pci.dev, pci.func);
}

bool IsPci(hwloc_obj_t object) {
  return object->type == HWLOC_OBJ_PCI_DEVICE ||
         (object->type == HWLOC_OBJ_BRIDGE &&
          object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI);
}

// The PCI attributes of a device or a bridge.
const PciAttributes& PciOf(hwloc_obj_t object) {
  return object->type == HWLOC_OBJ_BRIDGE ? object->attr->bridge.upstream.pci
                                          : object->attr->pcidev;
}

std::vector<std::string> HwlocPath(hwloc_obj_t object) {
  std::vector<std::string> path;
  for (; object != nullptr; object = object->parent) {
    if (IsPci(object)) {
      path.push_back(AddressOf(PciOf(object)));
    } else if (object->type == HWLOC_OBJ_BRIDGE) {
      const auto& below = object->attr->bridge.downstream.pci;
      path.push_back(absl::StrFormat("pci%04x:%02x", below.domain, below.secondary_bus));
    }
  }
  std::reverse(path.begin(), path.end());
  return path;
}

// Hwloc has the bandwidth of a link alone. Speed and width follow where only one pair of them gives
// it. A link of PCI Express 3 and newer carries 128 bits in 130, an older one 8 in 10.
void SplitLinkSpeed(double gigabytes_per_s, PciDevice* device) {
  struct Speed {
    double gigatransfers_per_s;
    double payload;
    const char* text;
  };
  constexpr double kNew = 128.0 / 130;
  constexpr Speed kSpeeds[] = {{2.5, 0.8, "2.5 GT/s PCIe"},  {5, 0.8, "5.0 GT/s PCIe"},
                               {8, kNew, "8.0 GT/s PCIe"},   {16, kNew, "16.0 GT/s PCIe"},
                               {32, kNew, "32.0 GT/s PCIe"}, {64, kNew, "64.0 GT/s PCIe"}};
  int found = 0;
  device->link_gigabytes_per_s = gigabytes_per_s;
  for (const Speed& speed : kSpeeds) {
    for (const int width : {1, 2, 4, 8, 16}) {
      const double expected = speed.gigatransfers_per_s * speed.payload / 8 * width;
      if (std::abs(expected - gigabytes_per_s) < 1e-3 * expected) {
        device->link_speed = speed.text;
        device->link_width = width;
        ++found;
      }
    }
  }
  if (found != 1) {
    device->link_speed = "";
    device->link_width = -1;
  }
}

PciDevice ReadHwlocDevice(hwloc_obj_t object) {
  const PciAttributes& pci = PciOf(object);
  PciDevice device;
  device.address = AddressOf(pci);
  device.path = HwlocPath(object);
  device.class_code = pci.class_id << 8;
  device.vendor = pci.vendor_id;
  device.device = pci.device_id;
  device.subsystem_vendor = pci.subvendor_id;
  device.subsystem_device = pci.subdevice_id;
  device.numa = NumaOfDevice(object);
  SplitLinkSpeed(double{pci.linkspeed}, &device);
  return device;
}

std::string InfoOf(hwloc_obj_t object, const char* name) {
  const char* const value = hwloc_obj_get_info_by_name(object, name);
  return value == nullptr ? "" : value;
}

// The port's state in hwloc's "Port1State", a number of the InfiniBand specification.
std::string PortStateName(const std::string& text) {
  constexpr const char* kNames[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  int state = -1;
  return absl::SimpleAtoi(text, &state) && state >= 0 && state < 6 ? kNames[state] : "";
}

Nic ReadHwlocNic(hwloc_obj_t object) {
  constexpr int kPortsMax = 8;
  Nic nic;
  nic.name = object->name == nullptr ? "" : object->name;
  nic.numa = NumaOfDevice(object);
  if (object->parent != nullptr && IsPci(object->parent)) {
    nic.pci = AddressOf(PciOf(object->parent));
    nic.pci_path = HwlocPath(object->parent);
    const int kind = PciOf(object->parent).class_id;
    for (hwloc_obj_t near = object->parent->io_first_child; near != nullptr;
         near = near->next_sibling) {
      if (near->type == HWLOC_OBJ_OS_DEVICE && near->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK &&
          near->name != nullptr && nic.netdev.empty()) {
        nic.netdev = near->name;
      }
    }
    for (int number = 1; number <= kPortsMax; ++number) {
      const std::string state = InfoOf(object, absl::StrCat("Port", number, "State").c_str());
      if (state.empty()) {
        continue;
      }
      NicPort& port = nic.ports.emplace_back();
      port.port = number;
      port.state = PortStateName(state);
      port.link_layer = kind == 0x0207 ? "InfiniBand" : kind == 0x0200 ? "Ethernet" : "";
    }
  }
  return nic;
}

// Reads what hwloc has learnt of a GPU by NVML's or CUDA's plugin.
void TakeGpuInfo(hwloc_obj_t object, Topology* topology) {
  int index = 0;
  if (object->name == nullptr || object->parent == nullptr || !IsPci(object->parent) ||
      !absl::StartsWith(object->name, "nvml") || !absl::SimpleAtoi(object->name + 4, &index)) {
    return;
  }
  Gpu& gpu = topology->gpus.emplace_back();
  gpu.index = index;
  gpu.pci = AddressOf(PciOf(object->parent));
  gpu.pci_path = HwlocPath(object->parent);
  gpu.numa = NumaOfDevice(object->parent);
  gpu.name = InfoOf(object, "GPUModel");
  gpu.uuid = InfoOf(object, "NVIDIAUUID");
}

}  // namespace

bool IsNvidiaGpu(const PciDevice& device) {
  // VGA and 3D controllers. A source may leave the vendor out, as NCCL's files may.
  return (device.vendor < 0 || device.vendor == kVendorNvidia) &&
         (device.class_code >> 8 == 0x0300 || device.class_code >> 8 == 0x0302);
}

const PciDevice* FindPci(const std::vector<PciDevice>& devices, absl::string_view address) {
  const auto found = std::find_if(devices.begin(), devices.end(), [&](const PciDevice& device) {
    return device.address == address;
  });
  return found == devices.end() ? nullptr : &*found;
}

std::vector<PciDevice> ReadSysfsPci(const std::string& sysfs_root) {
  std::vector<PciDevice> devices;
  const std::string folder = sysfs_root + "/bus/pci/devices";
  for (const std::string& address : ListSysfs(folder)) {
    const std::string path = absl::StrCat(folder, "/", address);
    PciDevice device;
    device.address = address;
    device.path = PciPath(path);
    device.class_code = ReadSysfsHex(path + "/class");
    device.vendor = ReadSysfsHex(path + "/vendor");
    device.device = ReadSysfsHex(path + "/device");
    device.subsystem_vendor = ReadSysfsHex(path + "/subsystem_vendor");
    device.subsystem_device = ReadSysfsHex(path + "/subsystem_device");
    device.link_speed = ReadSysfs(path + "/current_link_speed").value_or("");
    device.link_width = ReadSysfsInt(path + "/current_link_width", -1);
    device.numa = ReadSysfsInt(path + "/numa_node", -1);
    devices.push_back(std::move(device));
  }
  std::sort(devices.begin(), devices.end(), [](const PciDevice& a, const PciDevice& b) {
    return std::tuple(a.path, a.address) < std::tuple(b.path, b.address);
  });
  return devices;
}

void ReadHwlocPci(hwloc_topology* handle, bool add_nics, Topology* topology) {
  for (hwloc_obj_t object = nullptr;
       (object = hwloc_get_next_obj_by_type(handle, HWLOC_OBJ_BRIDGE, object)) != nullptr;) {
    if (IsPci(object)) {
      topology->pci.push_back(ReadHwlocDevice(object));
    }
  }
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_pcidev(handle, object)) != nullptr;) {
    topology->pci.push_back(ReadHwlocDevice(object));
  }
  std::sort(topology->pci.begin(), topology->pci.end(),
            [](const PciDevice& a, const PciDevice& b) { return a.path < b.path; });
  if (!add_nics) {
    return;
  }
  for (hwloc_obj_t object = nullptr; (object = hwloc_get_next_osdev(handle, object)) != nullptr;) {
    const hwloc_obj_osdev_type_t kind = object->attr->osdev.type;
    if (kind == HWLOC_OBJ_OSDEV_OPENFABRICS) {
      topology->nics.push_back(ReadHwlocNic(object));
    } else if (kind == HWLOC_OBJ_OSDEV_NETWORK && object->name != nullptr) {
      topology->interfaces.emplace_back(object->name);
    } else if (kind == HWLOC_OBJ_OSDEV_GPU) {
      TakeGpuInfo(object, topology);
    }
  }
}

void AddGpusOfTree(Topology* topology) {
  if (!topology->gpus.empty()) {
    return;
  }
  std::map<std::string, const PciDevice*> gpus;
  for (const PciDevice& device : topology->pci) {
    if (IsNvidiaGpu(device)) {
      gpus[device.address] = &device;
    }
  }
  for (const auto& [address, device] : gpus) {
    Gpu& gpu = topology->gpus.emplace_back();
    gpu.index = static_cast<int>(topology->gpus.size()) - 1;
    gpu.pci = address;
    gpu.pci_path = device->path;
    gpu.numa = device->numa;
  }
}

}  // namespace dtrain::launcher
