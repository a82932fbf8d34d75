// The flags of `dtrain launch` about the hosts that it starts over ssh, and what they mean
// together. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "launcher/hosts/host_tree.h"

namespace CLI {
class App;
}

namespace dtrain::launcher {

struct HostOptions {
  std::string hostfile;  // "": the hosts are not started from here, and nothing below is used.
  std::string include;
  std::string exclude;
  std::string topology_conf;  // A file of the cluster's switches; "": the order of the hostfile.
  int hosts_max = 0;          // The first N hosts of the file; 0: all.
  int slots_max = 0;          // The first N slots of each host; 0: all.
  std::string ssh_port;       // "": as ssh is configured.
  std::string ssh_fanout;     // "": kSshFanout.
  int fanout = kSshFanout;    // Hosts that one starts at most; 0: all are started from here.
  std::string launcher_args;
  std::vector<std::string> exports;  // NAME or NAME=VALUE.
  std::string dtrain;                // The program on the hosts; "": the path of this one.
  std::string address;               // Node 0's address for the others; "": found automatically.
  int port = 0;                      // Node 0's port; 0: a free one.
  bool dry_run = false;
  std::vector<std::string> flags;  // The flags that all nodes share, for their agents.
};

void AddHostFlags(CLI::App& app, HostOptions& hosts);

// The flags of `own`, spelt as CLI11 knows them, without those that say which hosts there are.
// REQUIRES: each flag is one of `app`, and has its value in the next word.
std::vector<std::string> FlagsForAgents(const CLI::App& app, const std::vector<std::string>& own);

// Fills hosts_max, slots_max, fanout, address and port from the flags that `app` has parsed.
// InvalidArgument: a flag contradicts --hostfile or needs it, or has a bad value.
absl::Status CheckHostFlags(const CLI::App& app, HostOptions& hosts);

}  // namespace dtrain::launcher
