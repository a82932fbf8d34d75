// Messages of `dtrain launch` and the agent of a host before ranks start, as JSON.
//
// Pure functions. Texts that come from the user travel in base64, because arguments and variables
// may hold any bytes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/job_env.h"

namespace dtrain::launcher {

// From the starter: all that the agent needs but the address of the meeting.
struct JobMessage {
  std::vector<std::string> flags;  // Flags of `dtrain launch` that all nodes share.
  std::string program;
  std::vector<std::string> arguments;  // The program's, unchanged.
  Environment environment;             // Variables to set.
  std::string directory;               // Working directory.
  std::string host;                    // The name of the agent's host in the hostfile.
  int nodes = 1;                       // Those that train at most; there may be spares.
  int nodes_min = 1;                   // Less than `nodes`: a job that grows and shrinks.
  int node_rank = 0;
  int ranks = 1;
  std::string token;  // The 32 bytes of the job's key.

  std::string Encode() const;
  static absl::StatusOr<JobMessage> Parse(absl::string_view text);
};

// From the agent: what must be alike on all hosts, and what it found wrong.
struct HelloMessage {
  std::string version;         // "0.1.0 (commit)" of its dtrain.
  std::string program;         // Path of the program there.
  std::string digest;          // Size and checksum of that file.
  std::string address;         // Its address by which ssh reached it; "" without ssh.
  std::string client_address;  // The starter's address, seen from this host; "" without ssh.
  std::string error;           // Why it cannot start ranks; "": it can.

  std::string Encode() const;
  static absl::StatusOr<HelloMessage> Parse(absl::string_view text);
};

// "0.1.0 (commit)": the version of this program as agents tell it.
std::string OwnVersion();

}  // namespace dtrain::launcher
