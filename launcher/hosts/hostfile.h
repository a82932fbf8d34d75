// The hosts of a job: reads DeepSpeed's hostfile and applies its --include, --exclude, --num_nodes
// and --num_gpus.
//
// Pure functions. A host's name is checked here, because later it is an argument of ssh.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

struct Host {
  std::string name;
  std::vector<int> slots;  // Numbers of the slots to use, one rank each, ascending.
};

// InvalidArgument unless `name` is a host name (letters, digits, dots, dashes and underscores,
// beginning with a letter or digit) or a literal IP address.
absl::Status CheckHostName(absl::string_view name);

// The hosts in `text`, one a line: "NAME slots=N" or "NAME:N". Blank lines and comments (#) are
// skipped. Errors (InvalidArgument) begin with FILE:LINE: a line of another form, a bad name, a
// host that is listed twice; or they name `file`, which lists no host.
absl::StatusOr<std::vector<Host>> ParseHostfile(absl::string_view text, absl::string_view file);

// How the command line limits the hosts of the file. Numbers of 0 and empty texts limit nothing.
struct HostLimits {
  std::string include{};  // "NAME[:SLOT,SLOT...]@...": only these hosts and slots.
  std::string exclude{};  // The same form: all others.
  int hosts_max = 0;      // The first N hosts.
  int slots_max = 0;      // The first N slots of each host.
};

// The hosts and slots that remain, in the order of `hosts`. Hosts without a slot are left out. The
// letters of a name may be of either case, as for the name service.
// InvalidArgument: an unknown host or slot, a text of another form, fewer hosts or slots than asked
// for, none left, or limits that exclude each other.
absl::StatusOr<std::vector<Host>> ChooseHosts(const std::vector<Host>& hosts,
                                              const HostLimits& limits);

}  // namespace dtrain::launcher
