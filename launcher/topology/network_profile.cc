#include "launcher/topology/network_profile.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/text/nearest.h"
#include "launcher/topology/bind_ranks.h"
#include "launcher/topology/nccl_topology.h"
#include "launcher/topology/sysfs.h"

namespace dtrain::launcher {
namespace {

struct FixedVariable {
  const char* name;
  const char* value;
  const char* reason;
};

// Oracle's own manifests for NCCL tests on its GPU clusters (github.com/oracle-quickstart/
// oci-hpc-oke and oci-hpc) and its results for MLPerf set these.
constexpr FixedVariable kOci[] = {
    {"NCCL_IB_GID_INDEX", "3", "OCI's RDMA interfaces have their RoCE v2 address over IPv4 there"},
    {"NCCL_IB_TC", "41", "OCI's switches take DSCP 10 for RDMA traffic (41 = 10 * 4 + ECN)"},
    {"NCCL_IB_SL", "0",
     "NCCL would take the traffic class of a communicator as the service level too"},
    {"NCCL_IB_TIMEOUT", "22", "packets may wait 17 s for a link that is repaired"},
    {"NCCL_IB_QPS_PER_CONNECTION", "4", "several flows find several paths through the fabric"},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "0", "each message takes one flow, as messages are large"},
    {"NCCL_NET_PLUGIN", "none", "NCCL's own RDMA code is used, not a plugin of the image"},
    {"NCCL_IGNORE_CPU_AFFINITY", "1", "NCCL's threads run near their GPU, whatever the binding"},
};

// Google's scripts for A3 Ultra and A4 set these for RoCE (set_nccl_env.sh of its gIB packages;
// cloud.google.com/ai-hypercomputer/docs/nccl).
constexpr FixedVariable kGcp[] = {
    {"NCCL_IB_TC", "52", "Google's switches take DSCP 13 for RDMA traffic (52 = 13 * 4)"},
    {"NCCL_IB_FIFO_TC", "84", "they take DSCP 21 for NCCL's control messages (84 = 21 * 4)"},
    {"NCCL_IB_SL", "0",
     "NCCL would take the traffic class of a communicator as the service level too"},
    {"NCCL_IB_QPS_PER_CONNECTION", "4", "several flows find several paths through the fabric"},
    {"NCCL_IB_ADAPTIVE_ROUTING", "1", "packets may take different paths and arrive out of order"},
    {"NCCL_CROSS_NIC", "0", "each NIC is on a rail of its own"},
    {"NCCL_NET_GDR_LEVEL", "PIX", "a NIC reaches the memory of GPUs at its own switch alone"},
};

// Amazon's guide for EFA and NCCL (docs.aws.amazon.com/AWSEC2, "Get started with EFA and NCCL") and
// its examples (github.com/awslabs/awsome-distributed-training).
constexpr FixedVariable kAwsEfa[] = {
    {"FI_PROVIDER", "efa", "libfabric, which the plugin of NCCL uses, has to take EFA"},
    {"NCCL_SOCKET_IFNAME", "^docker,lo,veth",
     "instances name their interfaces differently; these "
     "reach no other node"},
};

// Microsoft's images for HPC (github.com/Azure/azhpc-images) set these in /etc/nccl.conf.
constexpr FixedVariable kAzure[] = {
    {"NCCL_IB_PCI_RELAXED_ORDERING", "1", "virtual machines reach full bandwidth only so"},
    {"CUDA_DEVICE_ORDER", "PCI_BUS_ID", "the topology files of Azure number GPUs so"},
};

struct Profile {
  const char* name;
  const FixedVariable* begin;
  const FixedVariable* end;
  bool takes_hcas;        // The NICs are RDMA devices that NCCL opens by name.
  const char* interface;  // For sockets, where there is one of this name; null: NCCL chooses.
};

constexpr std::array kProfiles = {
    Profile{"oci", std::begin(kOci), std::end(kOci), true, "eth0"},
    Profile{"gcp", std::begin(kGcp), std::end(kGcp), true, nullptr},
    Profile{"aws-efa", std::begin(kAwsEfa), std::end(kAwsEfa), false, nullptr},
    Profile{"azure", std::begin(kAzure), std::end(kAzure), true, "eth0"},
    Profile{"roce-generic", nullptr, nullptr, true, nullptr},
};

const Profile* FindProfile(const std::string& name) {
  const auto found = std::find_if(kProfiles.begin(), kProfiles.end(),
                                  [&name](const Profile& each) { return each.name == name; });
  return found == kProfiles.end() ? nullptr : &*found;
}

ProfileVariable HcaVariable(const Topology& topology) {
  std::vector<std::string> names;
  for (const Nic* const nic : UsableNics(topology)) {
    for (const NicPort& port : nic->ports) {
      if (!nic->name.empty() && port.state == "ACTIVE") {
        names.push_back(absl::StrCat(nic->name, ":", port.port));
      }
    }
  }
  if (names.empty()) {
    return {"NCCL_IB_HCA", "", "this node shows no active RDMA NIC", ""};
  }
  return {"NCCL_IB_HCA", absl::StrCat("=", absl::StrJoin(names, ",")),
          "the active NICs of the GPUs' network, without slower ones for other traffic", ""};
}

ProfileVariable InterfaceVariable(const Topology& topology, const char* interface) {
  const bool is_there = std::find(topology.interfaces.begin(), topology.interfaces.end(),
                                  interface) != topology.interfaces.end();
  return {"NCCL_SOCKET_IFNAME", is_there ? absl::StrCat("=", interface) : "",
          is_there ? "the interface by which nodes of this cloud reach each other without RDMA"
                   : absl::StrCat("this node has no interface ", interface, ": NCCL chooses"),
          ""};
}

// The administrator's traffic class, if all NICs have the same.
std::vector<ProfileVariable> RoceVariables(const Topology& topology) {
  int traffic_class = -1;
  bool differs = false;
  for (const Nic* const nic : UsableNics(topology)) {
    differs = differs || (traffic_class >= 0 && traffic_class != nic->traffic_class);
    traffic_class = nic->traffic_class;
  }
  std::vector<ProfileVariable> variables = {
      {"NCCL_IB_GID_INDEX", "", "NCCL itself looks for the RoCE v2 address of each NIC", ""}};
  if (traffic_class < 0 || differs) {
    variables.push_back({"NCCL_IB_TC", "",
                         differs ? "the NICs of this node have different traffic classes"
                                 : "this node does not show a traffic class that its "
                                   "administrator has set",
                         ""});
    return variables;
  }
  variables.push_back({"NCCL_IB_TC", absl::StrCat(traffic_class),
                       "the traffic class that the administrator has set for these NICs", ""});
  variables.push_back(
      {"NCCL_IB_SL", "0",
       "NCCL would take the traffic class of a communicator as the service level too", ""});
  return variables;
}

// The file that names exactly the GPUs of this node.
ProfileVariable TopologyFileVariable(const Topology& topology, const ProfileFacts& facts) {
  std::vector<std::string> own;
  for (const Gpu& gpu : topology.gpus) {
    own.push_back(gpu.pci);
  }
  std::sort(own.begin(), own.end());
  for (const NcclTopologyFile& file : facts.topology_files) {
    std::vector<std::string> named = file.gpus;
    std::sort(named.begin(), named.end());
    if (!own.empty() && named == own) {
      return {"NCCL_TOPO_FILE", file.path,
              "the virtual machine hides its PCI switches; this file of the image names its GPUs",
              ""};
    }
  }
  return {"NCCL_TOPO_FILE", "", "no topology file of the image names the GPUs of this node", ""};
}

// The first that sets it counts.
void KeepWhatIsSet(const Environment& variables, const std::string& by, ProfileVariable* variable) {
  const auto own = variables.find(variable->name);
  if (own != variables.end() && variable->kept_by.empty()) {
    variable->kept = own->second;
    variable->kept_by = by;
  }
}

// The paths of the files that NCCL reads.
std::vector<std::string> ConfPaths(const Environment& environment, const std::string& root) {
  const auto given = environment.find("NCCL_CONF_FILE");
  std::string own;
  if (given != environment.end()) {
    own = given->second;
  } else if (const passwd* const user = getpwuid(getuid()); user != nullptr) {
    own = absl::StrCat(user->pw_dir, "/.nccl.conf");
  }
  return {root + own, root + "/etc/nccl.conf"};
}

}  // namespace

std::vector<std::string> NetworkProfiles() {
  std::vector<std::string> names;
  for (const Profile& profile : kProfiles) {
    names.emplace_back(profile.name);
  }
  return names;
}

absl::Status CheckNetworkProfile(const std::string& name) {
  if (FindProfile(name) != nullptr) {
    return absl::OkStatus();
  }
  const std::string near = Nearest(name, NetworkProfiles());
  return absl::InvalidArgumentError(absl::StrCat(
      "--network-profile is \"", name, "\"; allowed: ", absl::StrJoin(NetworkProfiles(), ", "),
      near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
}

std::vector<ProfileVariable> ProfileVariables(const std::string& profile, const Topology& topology,
                                              const ProfileFacts& facts,
                                              const Environment& environment) {
  const Profile& chosen = *FindProfile(profile);
  std::vector<ProfileVariable> variables;
  for (const FixedVariable* fixed = chosen.begin; fixed != chosen.end; ++fixed) {
    variables.push_back({fixed->name, fixed->value, fixed->reason, ""});
  }
  if (profile == "roce-generic") {
    variables = RoceVariables(topology);
  } else if (profile == "azure") {
    variables.push_back(TopologyFileVariable(topology, facts));
  }
  if (chosen.takes_hcas) {
    variables.push_back(HcaVariable(topology));
  }
  if (chosen.interface != nullptr) {
    variables.push_back(InterfaceVariable(topology, chosen.interface));
  }
  for (ProfileVariable& variable : variables) {
    KeepWhatIsSet(environment, "the environment", &variable);
    for (const NcclConf& conf : facts.confs) {
      KeepWhatIsSet(conf.variables, conf.path, &variable);
    }
  }
  return variables;
}

Environment SettingsOf(const std::vector<ProfileVariable>& variables) {
  Environment settings;
  for (const ProfileVariable& variable : variables) {
    if (variable.kept_by.empty() && !variable.value.empty()) {
      settings[variable.name] = variable.value;
    }
  }
  return settings;
}

std::vector<std::string> DescribeVariables(const std::vector<ProfileVariable>& variables) {
  std::vector<std::string> lines;
  for (const ProfileVariable& variable : variables) {
    if (!variable.kept_by.empty()) {
      lines.push_back(absl::StrCat(variable.name, "=", variable.kept, " (kept: ", variable.kept_by,
                                   " sets it",
                                   variable.value.empty() || variable.value == variable.kept
                                       ? ""
                                       : absl::StrCat("; the profile has ", variable.value),
                                   ")"));
    } else if (variable.value.empty()) {
      lines.push_back(absl::StrCat(variable.name, " is left unset (", variable.reason, ")"));
    } else {
      lines.push_back(absl::StrCat(variable.name, "=", variable.value, " (", variable.reason, ")"));
    }
  }
  return lines;
}

Environment ParseNcclConf(absl::string_view text) {
  Environment variables;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> pair = absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (pair.size() == 2 && !pair[0].empty() && pair[0][0] != '#') {
      variables[pair[0]] = pair[1];
    }
  }
  return variables;
}

ProfileFacts ReadProfileFacts(const Environment& environment, const std::string& root) {
  constexpr size_t kConfBytesMax = 1U << 20;
  ProfileFacts facts;
  for (const std::string& path : ConfPaths(environment, root)) {
    if (const auto text = ReadFile(path, kConfBytesMax); text.ok()) {
      facts.confs.push_back({path, ParseNcclConf(*text)});
    }
  }
  const std::string folder = root + "/opt/microsoft";
  for (const std::string& name : ListSysfs(folder)) {
    if (!absl::EndsWith(name, "-topo.xml")) {
      continue;
    }
    const std::string path = absl::StrCat(folder, "/", name);
    const auto element = ReadNcclFile(path);
    const auto topology = element.ok() ? FromNccl(*element, path) : element.status();
    if (!topology.ok()) {
      continue;  // A file that NCCL would not read either.
    }
    NcclTopologyFile& file = facts.topology_files.emplace_back();
    file.path = path;
    for (const Gpu& gpu : topology->gpus) {
      file.gpus.push_back(gpu.pci);
    }
  }
  return facts;
}

}  // namespace dtrain::launcher
