#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dl/cuda_versions.h"
#include "launcher/topology/distance.h"
#include "launcher/topology/doctor.h"
#include "launcher/topology/format.h"

namespace dtrain::launcher {
namespace {

constexpr uint64_t kGiB = 1ULL << 30;
constexpr uint64_t kUnlimited = ~uint64_t{0};

Finding CoreFinding(const Topology& topology) {
  size_t cpus = 0;
  for (const Core& core : topology.cores) {
    cpus += core.cpus.size();
  }
  Finding finding = {
      "cores", Verdict::kOk,
      absl::StrFormat("%d cores (%d hardware threads) usable, %s%d packages, %d NUMA nodes%s%s",
                      topology.cores.size(), cpus, FormatQuota(topology.cpu_quota),
                      topology.packages, topology.numa_nodes.size(),
                      topology.cpu_model.empty() ? "" : ", ", topology.cpu_model),
      ""};
  if (topology.cpu_quota < 1) {
    finding.verdict = Verdict::kWarning;
    finding.advice =
        "give the container or cgroup at least 1 CPU: a rank is stopped whenever it has used "
        "its part";
  }
  return finding;
}

Finding MemoryFinding(const DoctorFacts& facts) {
  Finding finding{"memory", Verdict::kOk,
                  absl::StrCat(FormatBytes(facts.memory_total_bytes), ", ",
                               FormatBytes(facts.memory_available_bytes), " available"),
                  ""};
  if (facts.cgroup_memory_bytes != 0) {
    absl::StrAppend(&finding.text, ", cgroup limit ", FormatBytes(facts.cgroup_memory_bytes), ", ",
                    FormatBytes(facts.cgroup_available_bytes), " left of it");
  }
  const uint64_t available =
      facts.cgroup_memory_bytes == 0
          ? facts.memory_available_bytes
          : std::min(facts.memory_available_bytes, facts.cgroup_available_bytes);
  if (available < kGiB) {
    finding.verdict = Verdict::kWarning;
    finding.advice = "end other programs: less than 1 GiB is available";
  }
  return finding;
}

Finding ShmFinding(const DoctorFacts& facts) {
  // Ranks reduce through memfd segments, which count against memory, not /dev/shm; LibTorch's
  // loaders and NCCL do use /dev/shm.
  Finding finding{
      "/dev/shm", Verdict::kOk,
      absl::StrCat(FormatBytes(facts.shm_bytes), ", ", FormatBytes(facts.shm_free_bytes), " free"),
      ""};
  if (facts.shm_bytes == 0) {
    finding = {"/dev/shm", Verdict::kWarning, "not there",
               "mount a tmpfs on /dev/shm: NCCL needs it between GPUs"};
  } else if (facts.shm_free_bytes < kGiB) {
    finding.verdict = Verdict::kWarning;
    finding.advice =
        "give it more, because NCCL may run out of it: a container takes --shm-size=8g or "
        "--ipc=host";
  }
  return finding;
}

// A build for the CPU alone, or a driver that does not say, has nothing to compare.
Finding DriverFinding(const Topology& topology, const DoctorFacts& facts) {
  const Gpu& first = topology.gpus.front();
  Finding finding{"GPUs", Verdict::kOk,
                  absl::StrFormat("%d x %s, %s, driver %s", topology.gpus.size(), first.name,
                                  FormatBytes(first.memory_bytes), topology.driver_version),
                  ""};
  if (topology.driver_cuda == 0 || facts.built_cuda == 0) {
    return finding;
  }
  absl::StrAppend(&finding.text, " (CUDA ", CudaVersionText(topology.driver_cuda), ")");
  const absl::Status usable =
      CheckCudaVersions({.driver = topology.driver_cuda,
                         .runtime = facts.built_cuda,
                         .devices = static_cast<int>(topology.gpus.size())});
  if (!usable.ok()) {
    finding.verdict = Verdict::kProblem;
    finding.advice = std::string(usable.message());
  }
  return finding;
}

// A finding for a GPU that a driver calls damaged or that has lost links; nothing for others.
void HealthFinding(const Gpu& gpu, std::vector<Finding>* findings) {
  const NvmlHealth& health = gpu.health;
  const std::string name = absl::StrCat("GPU ", gpu.index);
  if (health.remap_failed.value_or(false)) {
    findings->push_back({name, Verdict::kProblem,
                         "a row of its memory is bad and could not be replaced",
                         "have the GPU replaced: results may be wrong"});
  } else if (health.remap_pending.value_or(false)) {
    findings->push_back({name, Verdict::kWarning, "a bad row of its memory waits to be replaced",
                         "reset the GPU or restart the node, which replaces the row"});
  }
  if (health.ecc_uncorrected.value_or(0) > 0) {
    findings->push_back({name, Verdict::kWarning,
                         absl::StrCat(*health.ecc_uncorrected,
                                      " uncorrectable memory errors since the driver "
                                      "was loaded"),
                         "reset the GPU, and have it replaced if they return"});
  }
  if (health.nvlinks_down.value_or(0) > 0 &&
      gpu.nvlinks.size() + gpu.nvlinks_by_switch.size() > 0) {
    findings->push_back({name, Verdict::kWarning,
                         absl::StrCat(*health.nvlinks_down, " of its NVLinks are down"),
                         "restart the node, and have it looked at if they stay down"});
  }
  const std::string fabric = health.fabric_state.value_or("completed");
  if (fabric != "completed" && fabric != "not supported") {
    findings->push_back({name, Verdict::kProblem, absl::StrCat("its NVSwitch fabric: ", fabric),
                         "start nvidia-fabricmanager: without it CUDA cannot use the GPU"});
  }
}

void GpuFindings(const Topology& topology, const DoctorFacts& facts,
                 std::vector<Finding>* findings) {
  if (topology.gpus.empty()) {
    std::string why = "none found";
    for (const std::string& note : topology.notes) {
      why = absl::StartsWith(note, "GPUs: ") ? note.substr(6) : why;
    }
    findings->push_back({"GPUs", Verdict::kNote, why, "ranks run on the CPU"});
  } else {
    findings->push_back(DriverFinding(topology, facts));
    std::set<std::string> names;
    for (const Gpu& gpu : topology.gpus) {
      HealthFinding(gpu, findings);
      names.insert(gpu.name);
    }
    if (names.size() > 1) {
      findings->push_back({"GPU kinds", Verdict::kWarning,
                           absl::StrCat(names.size(), " kinds of GPU on one node"),
                           "use GPUs of one kind: every step takes as long as the slowest needs"});
    }
  }
  const Verdict missing = topology.gpus.empty() ? Verdict::kNote : Verdict::kProblem;
  findings->push_back(
      facts.cuda_plugin_path.empty()
          ? Finding{"CUDA plugin", missing, "libdtrain_cuda.so not found",
                    topology.gpus.empty() ? "" : "build with nvcc, or set DTRAIN_PLUGIN_DIR"}
          : Finding{"CUDA plugin", Verdict::kOk, facts.cuda_plugin_path, ""});
  findings->push_back(facts.nccl.empty()
                          ? Finding{"NCCL", missing, facts.nccl_error,
                                    topology.gpus.empty() ? "" : "install libnccl2, or LibTorch's"}
                          : Finding{"NCCL", Verdict::kOk, facts.nccl, ""});
}

Finding NicFinding(const Topology& topology, const Nic& nic) {
  Finding finding{absl::StrCat("NIC ", nic.name), Verdict::kOk, "", ""};
  for (const NicPort& port : nic.ports) {
    absl::StrAppend(&finding.text, finding.text.empty() ? "" : "; ", "port ", port.port, " ",
                    port.state, " ", port.rate_gbps, " Gb/s ",
                    port.link_layer == "Ethernet" ? "RoCE" : port.link_layer);
  }
  if (!nic.active()) {
    finding.verdict = Verdict::kWarning;
    finding.advice = "check the cable and the switch port: no port is active";
    return finding;
  }
  for (const NicPort& port : nic.ports) {
    const bool version2 = std::any_of(port.gids.begin(), port.gids.end(),
                                      [](const Gid& gid) { return gid.type == "RoCE v2"; });
    if (port.link_layer == "Ethernet" && !version2) {
      finding.verdict = Verdict::kWarning;
      finding.advice = "give its interface an IP address: without one it has no RoCE v2 GID";
    }
  }
  if (finding.advice.empty() && nic.netdev_mtu > 0 && nic.netdev_mtu < 4200) {
    finding.verdict = Verdict::kWarning;
    finding.advice = absl::StrCat("raise the MTU of ", nic.netdev, ", which is ", nic.netdev_mtu,
                                  ", to 4200 or more (9000 is usual), so that RoCE can send 4,096 "
                                  "bytes in a packet");
  }
  if (finding.advice.empty() && !topology.gpus.empty() &&
      std::none_of(topology.gpus.begin(), topology.gpus.end(), [&](const Gpu& gpu) {
        return DistanceBetween(gpu.pci_path, gpu.numa, nic.pci_path, nic.numa) != PciDistance::kFar;
      })) {
    finding.verdict = Verdict::kWarning;
    finding.advice =
        "move it to another slot if you can: it is far (SYS) from every GPU, so that its traffic "
        "crosses the CPU sockets";
  }
  return finding;
}

void NicFindings(const Topology& topology, const DoctorFacts& facts,
                 std::vector<Finding>* findings) {
  if (topology.nics.empty()) {
    findings->push_back(
        {"RDMA NICs", Verdict::kNote, "none found", "ranks of different nodes use TCP"});
    return;
  }
  for (const Nic& nic : topology.nics) {
    findings->push_back(NicFinding(topology, nic));
  }
  if (!facts.verbs.empty()) {
    findings->push_back({"verbs", Verdict::kWarning, facts.verbs,
                         "install libibverbs1 and "
                         "ibverbs-providers"});
  }
}

void LimitFindings(const Topology& topology, const DoctorFacts& facts,
                   std::vector<Finding>* findings) {
  Finding files{"open files", Verdict::kOk, absl::StrCat("limit ", facts.open_files_max), ""};
  if (facts.open_files_max < 4096) {
    files.verdict = Verdict::kWarning;
    files.advice =
        "raise it for large jobs, where a rank has a connection to each other rank: ulimit -n "
        "65536";
  }
  findings->push_back(files);
  const bool unlimited = facts.locked_memory_bytes == kUnlimited;
  Finding locked{
      "locked memory", Verdict::kOk,
      unlimited ? "unlimited" : absl::StrCat("limit ", FormatBytes(facts.locked_memory_bytes)), ""};
  if (!unlimited && !topology.nics.empty() && facts.locked_memory_bytes < 16 * kGiB) {
    locked.verdict = Verdict::kProblem;
    locked.advice =
        "raise it, because RDMA locks its buffers in memory: ulimit -l unlimited (in Slurm: "
        "PropagateResourceLimitsExcept=MEMLOCK)";
  }
  findings->push_back(locked);
}

}  // namespace

std::vector<Finding> Diagnose(const Topology& topology, const DoctorFacts& facts) {
  std::vector<Finding> findings = {CoreFinding(topology), MemoryFinding(facts), ShmFinding(facts)};
  GpuFindings(topology, facts, &findings);
  NicFindings(topology, facts, &findings);
  findings.push_back(facts.torch_path.empty()
                         ? Finding{"LibTorch", Verdict::kProblem, facts.torch_error, ""}
                         : Finding{"LibTorch", Verdict::kOk,
                                   absl::StrCat(facts.torch_version.empty() ? "unknown version"
                                                                            : facts.torch_version,
                                                " in ", facts.torch_path),
                                   ""});
  LimitFindings(topology, facts, &findings);
  for (const std::string& note : topology.notes) {
    if (!absl::StartsWith(note, "GPUs: ")) {
      findings.push_back({"topology", Verdict::kWarning, note, ""});
    }
  }
  return findings;
}

}  // namespace dtrain::launcher
