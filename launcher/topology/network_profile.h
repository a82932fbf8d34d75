// Variables for NCCL and RDMA that a cloud's network needs, by the name of a profile. Pure, but for
// ReadProfileFacts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"
#include "launcher/topology/topology.h"

namespace dtrain::launcher {

// A topology file of NCCL on this machine, and the GPUs that it names.
struct NcclTopologyFile {
  std::string path;
  std::vector<std::string> gpus;  // PCI addresses.
};

// A configuration file of NCCL. Its variables count only where the environment does not set them.
struct NcclConf {
  std::string path;
  Environment variables;
};

// Facts that a profile needs and that a topology does not hold.
struct ProfileFacts {
  std::vector<NcclTopologyFile> topology_files;
  std::vector<NcclConf> confs;  // Those that NCCL reads, the one that wins first.
};

struct ProfileVariable {
  std::string name;
  std::string value;         // "": left unset on purpose.
  std::string reason;        // A sentence without its dot.
  std::string kept;          // The value that is set already, which stays; "": none.
  std::string kept_by = {};  // What has set it: "the environment", or a file.
};

// The names: oci, gcp, aws-efa, azure, roce-generic.
std::vector<std::string> NetworkProfiles();

// InvalidArgument unless `name` is one of them; it says which is nearest.
absl::Status CheckNetworkProfile(const std::string& name);

// The variables of a profile on a node, each with its reason. Those that `environment` or a file of
// NCCL sets already stay as they are. What the topology does not show, such as the names of NICs,
// leaves its variable unset, with the reason. REQUIRES: the profile is known.
std::vector<ProfileVariable> ProfileVariables(const std::string& profile, const Topology& topology,
                                              const ProfileFacts& facts,
                                              const Environment& environment);

// The variables to set: those with a value that the user has not set.
Environment SettingsOf(const std::vector<ProfileVariable>& variables);

// A line for each variable: "NCCL_IB_TC=41 (reason)".
std::vector<std::string> DescribeVariables(const std::vector<ProfileVariable>& variables);

// The variables in the text of a configuration file of NCCL: lines NAME=VALUE, comments with #.
Environment ParseNcclConf(absl::string_view text);

// Reads the topology files that images of clouds have, and NCCL's configuration: NCCL_CONF_FILE,
// else .nccl.conf in the user's home, and /etc/nccl.conf. `root` comes before each path, for tests.
ProfileFacts ReadProfileFacts(const Environment& environment, const std::string& root = "");

}  // namespace dtrain::launcher
