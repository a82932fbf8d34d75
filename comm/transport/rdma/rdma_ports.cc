#include "comm/transport/rdma/rdma_ports.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

#undef ibv_query_port

namespace dtrain::comm {
namespace {

// Room for the GIDs of all ports of a device; a port's table has 16 to 256 entries, most of them
// empty.
constexpr size_t kGidsMax = 1024;

// The first line of a small file of sysfs; "" when it cannot be read, as is the case for empty
// entries.
std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The GIDs of a port as the kernel gives them through the device; empty if it does not.
std::vector<RdmaGid> AskForGids(const VerbsFunctions& verbs, ibv_context* context, int port) {
  std::vector<RdmaGid> gids;
  if (verbs.query_gid_table == nullptr) {
    return gids;
  }
  std::vector<ibv_gid_entry> entries(kGidsMax);
  const ssize_t count =
      verbs.query_gid_table(context, entries.data(), entries.size(), 0, sizeof(ibv_gid_entry));
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (static_cast<int>(entry.port_num) != port) {
      continue;
    }
    RdmaGid gid;
    gid.index = static_cast<int>(entry.gid_index);
    std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? RdmaGid::Type::kRoceV2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? RdmaGid::Type::kRoceV1
                                                        : RdmaGid::Type::kInfiniBand;
    char netdev[IF_NAMESIZE] = {};
    if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, netdev) != nullptr) {
      gid.netdev = netdev;
    }
    gids.push_back(std::move(gid));
  }
  return gids;
}

RdmaPort ReadPort(const VerbsFunctions& verbs, ibv_context* context, const std::string& device,
                  int number) {
  RdmaPort port;
  port.device = device;
  port.number = number;
  ibv_port_attr attributes{};
  if (const int error = verbs.query_port(context, static_cast<uint8_t>(number), &attributes);
      error != 0) {
    port.active = false;
    port.state = absl::StrCat("not readable: ", std::strerror(error));
    return port;
  }
  port.ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.state = PortStateName(attributes.state);
  port.mtu_bytes = 128 << static_cast<int>(attributes.active_mtu);
  port.lid = port.ethernet ? uint16_t{0} : attributes.lid;
  port.gids = ReadGids(absl::StrCat("/sys/class/infiniband/", device, "/ports/", number),
                       attributes.gid_tbl_len);
  if (port.gids.empty()) {
    port.gids = AskForGids(verbs, context, number);
  }
  if (!port.ethernet) {  // Sysfs has one name for the types InfiniBand and RoCE v1.
    for (RdmaGid& gid : port.gids) {
      gid.type = RdmaGid::Type::kInfiniBand;
    }
  }
  return port;
}

void ReadDevice(const VerbsFunctions& verbs, ibv_device* device, std::vector<RdmaPort>& ports) {
  const std::string name = verbs.get_device_name(device);
  ibv_context* const context = verbs.open_device(device);
  if (context == nullptr) {
    RdmaPort port;
    port.device = name;
    port.active = false;
    port.state = absl::StrCat("not openable: ", std::strerror(errno));
    ports.push_back(std::move(port));
    return;
  }
  ibv_device_attr attributes{};
  if (verbs.query_device(context, &attributes) == 0) {
    for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
      ports.push_back(ReadPort(verbs, context, name, number));
    }
  }
  verbs.close_device(context);
}

}  // namespace

std::string PortStateName(int state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "DOWN";
    case IBV_PORT_INIT:
      return "INIT";
    case IBV_PORT_ARMED:
      return "ARMED";
    case IBV_PORT_ACTIVE:
      return "ACTIVE";
    default:
      return absl::StrCat("in state ", state);
  }
}

std::string CannotPin(size_t bytes, const std::string& limit) {
  return absl::StrFormat(
      "cannot register %d bytes for RDMA: the limit of locked memory is %s; raise it with ulimit "
      "-l unlimited (systemd: LimitMEMLOCK=infinity, Slurm: PropagateResourceLimitsExcept=MEMLOCK, "
      "containers: --ulimit memlock=-1), or set comm.transport to tcp",
      bytes, limit);
}

std::vector<RdmaGid> ReadGids(const std::string& folder, int table_entries) {
  std::vector<RdmaGid> gids;
  for (int index = 0; index < table_entries; ++index) {
    RdmaGid gid;
    gid.index = index;
    const std::string text = ReadLine(absl::StrCat(folder, "/gids/", index));
    const std::string type = ReadLine(absl::StrCat(folder, "/gid_attrs/types/", index));
    const bool empty =
        inet_pton(AF_INET6, text.c_str(), gid.bytes.data()) != 1 ||
        std::all_of(gid.bytes.begin(), gid.bytes.end(), [](uint8_t byte) { return byte == 0; });
    if (empty || type.empty()) {
      continue;
    }
    gid.type = type == "RoCE v2"      ? RdmaGid::Type::kRoceV2
               : type == "IB/RoCE v1" ? RdmaGid::Type::kRoceV1
                                      : RdmaGid::Type::kInfiniBand;
    gid.netdev = ReadLine(absl::StrCat(folder, "/gid_attrs/ndevs/", index));
    gids.push_back(std::move(gid));
  }
  return gids;
}

absl::StatusOr<std::vector<RdmaPort>> ReadPorts(const Verbs& verbs) {
  const VerbsFunctions& functions = verbs.functions();
  int count = 0;
  ibv_device** const list = functions.get_device_list(&count);
  std::vector<RdmaPort> ports;
  if (list == nullptr) {
    // ENOSYS: the kernel has no RDMA modules, which is the same as no device.
    return errno == ENOSYS
               ? absl::StatusOr<std::vector<RdmaPort>>(ports)
               : absl::UnavailableError(ErrnoStatus(errno, "ibv_get_device_list").message());
  }
  for (int i = 0; i < count; ++i) {
    ReadDevice(functions, list[i], ports);
  }
  functions.free_device_list(list);
  return ports;
}

}  // namespace dtrain::comm
