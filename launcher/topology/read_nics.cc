#include <infiniband/verbs.h>

#include <array>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/dl/verbs.h"
#include "launcher/topology/sysfs.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {
namespace {

// The counters of a port that mean errors, in `counters` and in `hw_counters`. The others count
// traffic, or requests that are no errors.
constexpr std::array kErrorCounters = {"symbol_error",
                                       "link_error_recovery",
                                       "link_downed",
                                       "port_rcv_errors",
                                       "port_rcv_remote_physical_errors",
                                       "port_rcv_switch_relay_errors",
                                       "port_rcv_constraint_errors",
                                       "port_xmit_discards",
                                       "port_xmit_constraint_errors",
                                       "local_link_integrity_errors",
                                       "excessive_buffer_overrun_errors",
                                       "VL15_dropped"};
constexpr std::array kHardwareErrorCounters = {"duplicate_request",
                                               "implied_nak_seq_err",
                                               "local_ack_timeout_err",
                                               "out_of_buffer",
                                               "out_of_sequence",
                                               "packet_seq_err",
                                               "req_cqe_error",
                                               "req_remote_access_errors",
                                               "req_remote_invalid_request",
                                               "resp_cqe_error",
                                               "resp_local_length_error",
                                               "resp_remote_access_errors",
                                               "rnr_nak_retry_err",
                                               "roce_adp_retrans_to",
                                               "roce_slow_restart",
                                               "rx_icrc_encapsulated",
                                               "np_ecn_marked_roce_packets",
                                               "np_cnp_sent",
                                               "rp_cnp_handled"};

std::vector<Gid> ReadGids(const std::string& port_path) {
  std::vector<Gid> gids;
  for (const std::string& index : ListSysfs(absl::StrCat(port_path, "/gids"))) {
    const auto gid = ReadSysfs(absl::StrCat(port_path, "/gids/", index));
    const auto type = ReadSysfs(absl::StrCat(port_path, "/gid_attrs/types/", index));
    // A table has 16 to 256 entries, most of them zero; unset ones have no type.
    if (!gid.has_value() || gid->find_first_not_of("0:") == std::string::npos) {
      continue;
    }
    Gid found;
    if (!absl::SimpleAtoi(index, &found.index)) {
      continue;
    }
    found.gid = *gid;
    found.type = type.value_or("");
    found.netdev = ReadSysfs(absl::StrCat(port_path, "/gid_attrs/ndevs/", index)).value_or("");
    gids.push_back(std::move(found));
  }
  return gids;
}

template <size_t kCount>
void ReadCounters(const std::string& path, const std::array<const char*, kCount>& names,
                  std::map<std::string, uint64_t>* counters) {
  for (const char* const name : names) {
    uint64_t value = 0;
    const auto text = ReadSysfs(absl::StrCat(path, "/", name));
    if (text.has_value() && absl::SimpleAtoi(*text, &value)) {
      (*counters)[name] = value;
    }
  }
}

// The name in a text such as "4: ACTIVE".
std::string ReadState(const std::string& path) {
  const std::string state = ReadSysfs(path).value_or("");
  const size_t colon = state.find(": ");
  return colon == std::string::npos ? state : state.substr(colon + 2);
}

NicPort ReadPort(const std::string& path, int number) {
  NicPort port;
  port.port = number;
  port.state = ReadState(path + "/state");
  port.phys_state = ReadState(path + "/phys_state");
  const std::string rate = ReadSysfs(path + "/rate").value_or("");  // "400 Gb/sec (4X NDR)".
  (void)absl::SimpleAtod(rate.substr(0, rate.find(' ')), &port.rate_gbps);
  port.link_layer = ReadSysfs(path + "/link_layer").value_or("");
  port.gids = ReadGids(path);
  ReadCounters(path + "/counters", kErrorCounters, &port.errors);
  ReadCounters(path + "/hw_counters", kHardwareErrorCounters, &port.errors);
  return port;
}

// The number in "Global tclass=106", which Mellanox's driver has in tc/1/traffic_class.
int ReadTrafficClass(const std::string& path) {
  const std::string text = ReadSysfs(path).value_or("");
  int value = -1;
  return absl::SimpleAtoi(text.substr(text.rfind('=') + 1), &value) && value >= 0 && value < 256
             ? value
             : -1;
}

Nic ReadNic(const std::string& sysfs_root, const std::string& name) {
  const std::string path = absl::StrCat(sysfs_root, "/class/infiniband/", name);
  Nic nic;
  nic.name = name;
  nic.pci_path = PciPath(path + "/device");
  nic.pci = nic.pci_path.empty() ? "" : nic.pci_path.back();
  nic.numa = ReadSysfsInt(path + "/device/numa_node", -1);
  nic.firmware = ReadSysfs(path + "/fw_ver").value_or("");
  const std::string guid =
      absl::StrReplaceAll(ReadSysfs(path + "/node_guid").value_or(""), {{":", ""}});
  nic.guid = guid.empty() ? "" : absl::StrCat("0x", guid);
  nic.traffic_class = ReadTrafficClass(path + "/tc/1/traffic_class");
  for (const std::string& number : ListSysfs(path + "/ports")) {
    int port = 0;
    if (absl::SimpleAtoi(number, &port)) {
      nic.ports.push_back(ReadPort(absl::StrCat(path, "/ports/", number), port));
    }
  }
  // The GIDs name the interface; for soft-RoCE, which has no PCI device, nothing else does.
  for (const NicPort& port : nic.ports) {
    for (const Gid& gid : port.gids) {
      nic.netdev = nic.netdev.empty() ? gid.netdev : nic.netdev;
    }
  }
  if (nic.netdev.empty()) {
    const auto netdevs = ListSysfs(path + "/device/net");
    nic.netdev = netdevs.empty() ? "" : netdevs.front();
  }
  if (!nic.netdev.empty()) {
    nic.netdev_mtu = ReadSysfsInt(absl::StrCat(sysfs_root, "/class/net/", nic.netdev, "/mtu"), 0);
  }
  return nic;
}

// Sysfs does not have the MTU of RDMA packets; the device does.
void ReadMtus(const Verbs& verbs, std::vector<Nic>* nics) {
  const VerbsFunctions& f = verbs.functions();
  int count = 0;
  ibv_device** const devices = f.get_device_list(&count);
  for (int i = 0; devices != nullptr && i < count; ++i) {
    ibv_context* const context = f.open_device(devices[i]);
    if (context == nullptr) {
      continue;  // This user may not open it: its MTU stays unknown.
    }
    for (Nic& nic : *nics) {
      if (nic.name != f.get_device_name(devices[i])) {
        continue;
      }
      for (NicPort& port : nic.ports) {
        ibv_port_attr attr = {};
        if (f.query_port(context, static_cast<uint8_t>(port.port), &attr) == 0 &&
            attr.active_mtu >= IBV_MTU_256 && attr.active_mtu <= IBV_MTU_4096) {
          port.mtu = 128 << attr.active_mtu;
        }
      }
    }
    f.close_device(context);
  }
  if (devices != nullptr) {
    f.free_device_list(devices);
  }
}

}  // namespace

std::vector<Nic> ReadNics(const std::string& sysfs_root, std::vector<std::string>* notes,
                          const Verbs* verbs) {
  std::vector<Nic> nics;
  for (const std::string& name : ListSysfs(sysfs_root + "/class/infiniband")) {
    nics.push_back(ReadNic(sysfs_root, name));
    if (nics.back().ports.empty()) {
      notes->push_back(absl::StrCat("NIC ", name, ": its ports cannot be read"));
    }
  }
  if (verbs != nullptr && !nics.empty()) {
    ReadMtus(*verbs, &nics);
  }
  return nics;
}

}  // namespace dtrain::launcher
