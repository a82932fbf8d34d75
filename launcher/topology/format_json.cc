#include <utility>

#include "launcher/topology/distance.h"
#include "launcher/topology/format.h"

namespace dtrain::launcher {
namespace {

Json Unknown() { return "unknown"; }

Json TextJson(const std::string& text) { return text.empty() ? Unknown() : Json(text); }

// For numbers that are -1, or 0 as `least` says, where they are not known.
template <typename Number>
Json NumberJson(Number value, Number least) {
  return value < least ? Unknown() : Json(value);
}

template <typename Value>
Json OptionalJson(const std::optional<Value>& value) {
  return value.has_value() ? Json(*value) : Unknown();
}

Json HexJson(int value, int digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  if (value < 0) {
    return Unknown();
  }
  std::string text = "0x";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    text += kDigits[value >> shift & 15];
  }
  return text;
}

Json HealthJson(const NvmlHealth& health) {
  return {{"temperature_c", OptionalJson(health.temperature_c)},
          {"pcie_generation", OptionalJson(health.pcie_generation)},
          {"pcie_width", OptionalJson(health.pcie_width)},
          {"pcie_generation_max", OptionalJson(health.pcie_generation_max)},
          {"pcie_width_max", OptionalJson(health.pcie_width_max)},
          {"ecc_corrected", OptionalJson(health.ecc_corrected)},
          {"ecc_uncorrected", OptionalJson(health.ecc_uncorrected)},
          {"remapped_rows", OptionalJson(health.remapped_rows)},
          {"remap_pending", OptionalJson(health.remap_pending)},
          {"remap_failed", OptionalJson(health.remap_failed)},
          {"throttle_reasons", OptionalJson(health.throttle_reasons)},
          {"nvlinks_down", OptionalJson(health.nvlinks_down)},
          {"nvlink_errors", OptionalJson(health.nvlink_errors)},
          {"fabric_state", OptionalJson(health.fabric_state)}};
}

Json GpuJson(const Topology& topology, const Gpu& gpu) {
  Json links = Json::object();
  for (const auto& [peer, count] : gpu.nvlinks) {
    links[std::to_string(peer)] = count;
  }
  Json switches = Json::object();
  for (const auto& [address, count] : gpu.nvlinks_by_switch) {
    switches[address.empty() ? "unknown" : address] = count;
  }
  Json connections = Json::object();
  for (const Gpu& other : topology.gpus) {
    if (&other != &gpu) {
      connections[std::to_string(other.index)] = GpuConnection(gpu, other);
    }
  }
  const bool known = gpu.nvlinks_known;
  return {{"index", gpu.index},
          {"name", TextJson(gpu.name)},
          {"uuid", TextJson(gpu.uuid)},
          {"pci", gpu.pci},
          {"pci_path", gpu.pci_path},
          {"numa", NumberJson(gpu.numa, 0)},
          {"memory_bytes", NumberJson(gpu.memory_bytes, uint64_t{1})},
          {"compute_capability", NumberJson(gpu.compute_capability, 1)},
          {"nvlinks_by_gpu", known ? links : Unknown()},
          {"nvlinks_to_switches", known ? Json(gpu.nvlinks_to_switches) : Unknown()},
          {"nvlinks_by_switch", known ? switches : Unknown()},
          {"connection_by_gpu", connections},
          {"health", HealthJson(gpu.health)}};
}

Json PortJson(const NicPort& port) {
  Json gids = Json::array();
  for (const Gid& gid : port.gids) {
    gids.push_back({{"index", gid.index},
                    {"gid", gid.gid},
                    {"type", TextJson(gid.type)},
                    {"netdev", gid.netdev}});
  }
  return {{"port", port.port},
          {"state", TextJson(port.state)},
          {"phys_state", TextJson(port.phys_state)},
          {"link_layer", TextJson(port.link_layer)},
          {"rate_gbps", port.rate_gbps > 0 ? Json(port.rate_gbps) : Unknown()},
          {"mtu", NumberJson(port.mtu, 1)},
          {"gids", gids},
          {"errors", port.errors.empty() ? Unknown() : Json(port.errors)}};
}

Json NicJson(const Topology& topology, const Nic& nic) {
  Json ports = Json::array();
  for (const NicPort& port : nic.ports) {
    ports.push_back(PortJson(port));
  }
  Json distances = Json::object();
  for (const Gpu& gpu : topology.gpus) {
    distances[std::to_string(gpu.index)] = NicConnection(gpu, nic);
  }
  return {{"name", TextJson(nic.name)},
          {"pci", TextJson(nic.pci)},
          {"pci_path", nic.pci_path},
          {"numa", NumberJson(nic.numa, 0)},
          {"netdev", TextJson(nic.netdev)},
          {"netdev_mtu", NumberJson(nic.netdev_mtu, 1)},
          {"firmware", TextJson(nic.firmware)},
          {"guid", TextJson(nic.guid)},
          {"traffic_class", NumberJson(nic.traffic_class, 0)},
          {"ports", ports},
          {"distance_by_gpu", distances}};
}

Json PciJson(const PciDevice& device) {
  return {{"address", device.address},
          {"path", device.path},
          {"class", HexJson(device.class_code, 6)},
          {"vendor", HexJson(device.vendor, 4)},
          {"device", HexJson(device.device, 4)},
          {"subsystem_vendor", HexJson(device.subsystem_vendor, 4)},
          {"subsystem_device", HexJson(device.subsystem_device, 4)},
          {"link_speed", TextJson(device.link_speed)},
          {"link_width", NumberJson(device.link_width, 1)},
          {"link_gigabytes_per_s",
           device.link_gigabytes_per_s > 0 ? Json(device.link_gigabytes_per_s) : Unknown()},
          {"numa", NumberJson(device.numa, 0)}};
}

// "unknown" for a list that the source does not have; each node has at least one such thing.
template <typename Item, typename Function>
Json ListJson(const std::vector<Item>& items, const Function& function) {
  Json list = Json::array();
  for (const Item& item : items) {
    list.push_back(function(item));
  }
  return list.empty() ? Unknown() : list;
}

Json CpuJson(const Topology& topology) {
  const CpuKind& kind = topology.cpu_kind;
  return {{"model", TextJson(topology.cpu_model)},
          {"arch", TextJson(kind.arch)},
          {"vendor", TextJson(kind.vendor)},
          {"family", NumberJson(kind.family, 0)},
          {"model_number", NumberJson(kind.model, 0)}};
}

}  // namespace

Json TopologyJson(const Topology& topology) {
  const Json cores = ListJson(topology.cores, [](const Core& core) {
    return Json{{"package", NumberJson(core.package, 0)}, {"numa", core.numa}, {"cpus", core.cpus}};
  });
  const Json caches = ListJson(topology.caches, [](const Cache& cache) {
    return Json{{"level", cache.level},
                {"kind", cache.kind},
                {"bytes", cache.bytes},
                {"line_bytes", NumberJson(cache.line_bytes, 1)},
                {"cpus", cache.cpus}};
  });
  const Json numa_nodes = ListJson(topology.numa_nodes, [](const NumaNode& node) {
    return Json{{"id", node.id},
                {"memory_bytes", NumberJson(node.memory_bytes, uint64_t{1})},
                {"cpus", node.cpus}};
  });
  Json gpus = Json::array();
  for (const Gpu& gpu : topology.gpus) {
    gpus.push_back(GpuJson(topology, gpu));
  }
  Json nics = Json::array();
  for (const Nic& nic : topology.nics) {
    nics.push_back(NicJson(topology, nic));
  }
  const bool is_file = !topology.file.empty();
  return {{"v", 1},
          {"source", is_file ? topology.file : "this machine"},
          {"host", TextJson(topology.host)},
          {"cpu_model", TextJson(topology.cpu_model)},
          {"cpu", CpuJson(topology)},
          {"packages", NumberJson(topology.packages, 1)},
          {"memory_bytes", NumberJson(topology.memory_bytes, uint64_t{1})},
          {"cpu_quota", is_file                             ? Unknown()
                        : topology.cpu_quota == kNoCpuQuota ? Json()
                                                            : Json(topology.cpu_quota)},
          {"numa_nodes", numa_nodes},
          {"cores", cores},
          {"caches", caches},
          {"driver_version", TextJson(topology.driver_version)},
          {"gpus", gpus},
          {"nics", nics},
          {"interfaces", topology.interfaces},
          {"pci", ListJson(topology.pci, PciJson)},
          {"notes", topology.notes}};
}

Json SwitchesJson(const SwitchTree& tree, const std::string& host) {
  Json list = Json::array();
  for (const Switch& each : tree.Walk()) {
    list.push_back({{"name", each.name},
                    {"parent", each.parent.empty() ? Json() : Json(each.parent)},
                    {"nodes", each.nodes}});
  }
  return {{"switches", list}, {"this_node", TextJson(tree.AddressOf(host))}};
}

Json VariablesJson(const std::vector<ProfileVariable>& variables) {
  Json list = Json::array();
  for (const ProfileVariable& variable : variables) {
    list.push_back({{"name", variable.name},
                    {"value", variable.value.empty() ? Json() : Json(variable.value)},
                    {"reason", variable.reason},
                    {"kept", variable.kept_by.empty() ? Json() : Json(variable.kept)},
                    {"kept_by", variable.kept_by.empty() ? Json() : Json(variable.kept_by)}});
  }
  return list;
}

Json RankPlanJson(const RankPlan& plan) {
  Json ranks = Json::array();
  for (const RankBinding& rank : plan.ranks) {
    ranks.push_back({{"local_rank", rank.local_rank},
                     {"cpus", rank.cpus},
                     {"cores", rank.cores},
                     {"numa", rank.numa},
                     {"memory_node", rank.memory_node},
                     {"gpu", rank.gpu},
                     {"nic", rank.nic},
                     {"nic_pci", rank.nic_pci}});
  }
  return {{"ranks", ranks},
          {"cores_shared", plan.cores_shared},
          {"cores_by_quota", plan.cores_by_quota},
          {"gpus_shared", plan.gpus_shared}};
}

Json FindingsJson(const std::vector<Finding>& findings) {
  constexpr const char* kVerdicts[] = {"ok", "note", "warning", "problem"};
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"name", finding.name},
                    {"verdict", kVerdicts[static_cast<int>(finding.verdict)]},
                    {"text", finding.text},
                    {"advice", finding.advice}});
  }
  return {{"v", 1}, {"findings", list}};
}

}  // namespace dtrain::launcher
