#include "launcher/topology/format.h"

namespace dtrain::launcher {
namespace {

Json GpuJson(const Gpu& gpu) {
  Json links = Json::object();
  for (const auto& [peer, count] : gpu.nvlinks) {
    links[std::to_string(peer)] = count;
  }
  return {{"index", gpu.index},      {"name", gpu.name},
          {"uuid", gpu.uuid},        {"pci", gpu.pci},
          {"numa", gpu.numa},        {"memory_bytes", gpu.memory_bytes},
          {"nvlinks_by_gpu", links}, {"nvlinks_to_switches", gpu.nvlinks_to_switches}};
}

Json NicJson(const Topology& topology, const Nic& nic) {
  Json ports = Json::array();
  for (const NicPort& port : nic.ports) {
    Json gids = Json::array();
    for (const Gid& gid : port.gids) {
      gids.push_back(
          {{"index", gid.index}, {"gid", gid.gid}, {"type", gid.type}, {"netdev", gid.netdev}});
    }
    ports.push_back({{"port", port.port},
                     {"state", port.state},
                     {"link_layer", port.link_layer},
                     {"rate_gbps", port.rate_gbps},
                     {"gids", gids}});
  }
  Json distances = Json::object();
  for (const Gpu& gpu : topology.gpus) {
    distances[std::to_string(gpu.index)] =
        PciDistanceName(DistanceBetween(gpu.pci_path, gpu.numa, nic.pci_path, nic.numa));
  }
  return {{"name", nic.name},
          {"pci", nic.pci},
          {"numa", nic.numa},
          {"netdev", nic.netdev},
          {"netdev_mtu", nic.netdev_mtu},
          {"firmware", nic.firmware},
          {"ports", ports},
          {"distance_by_gpu", distances}};
}

}  // namespace

Json TopologyJson(const Topology& topology) {
  Json cores = Json::array();
  for (const Core& core : topology.cores) {
    cores.push_back({{"package", core.package}, {"numa", core.numa}, {"cpus", core.cpus}});
  }
  Json numa_nodes = Json::array();
  for (const NumaNode& node : topology.numa_nodes) {
    numa_nodes.push_back({{"id", node.id}, {"memory_bytes", node.memory_bytes}});
  }
  Json gpus = Json::array();
  for (const Gpu& gpu : topology.gpus) {
    gpus.push_back(GpuJson(gpu));
  }
  Json nics = Json::array();
  for (const Nic& nic : topology.nics) {
    nics.push_back(NicJson(topology, nic));
  }
  return {{"v", 1},
          {"host", topology.host},
          {"cpu_model", topology.cpu_model},
          {"packages", topology.packages},
          {"memory_bytes", topology.memory_bytes},
          {"cpu_quota", topology.cpu_quota == kNoCpuQuota ? Json() : Json(topology.cpu_quota)},
          {"numa_nodes", numa_nodes},
          {"cores", cores},
          {"driver_version", topology.driver_version},
          {"gpus", gpus},
          {"nics", nics},
          {"notes", topology.notes}};
}

Json RankPlanJson(const RankPlan& plan) {
  Json ranks = Json::array();
  for (const RankBinding& rank : plan.ranks) {
    ranks.push_back({{"local_rank", rank.local_rank},
                     {"cpus", rank.cpus},
                     {"cores", rank.cores},
                     {"numa", rank.numa},
                     {"gpu", rank.gpu},
                     {"nic", rank.nic}});
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
