// Measures the latency of small messages between each two hosts of a job, for `dtrain topo
// --measure`. The processes that measure are the ranks of the job, one on each host.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/job_env.h"
#include "comm/net/job_key.h"
#include "comm/net/store.h"
#include "launcher/topology/measured_switches.h"

namespace dtrain::launcher {

struct MeasuringHost {
  int rank = 0;
  int size = 1;
  uint64_t epoch = 0;
  std::string name;     // Where hosts have one name, their addresses are their names.
  std::string address;  // At which the others reach it.
};

// The other rank with which `rank` measures in `round`, below MeasuringRounds(size), so that each
// two ranks meet once and nobody has two others at a time; -1: none. Pure.
int PartnerIn(int round, int rank, int size);
int MeasuringRounds(int size);

// Blocks until all ranks have measured. Gives the latencies to rank 0 and nothing to others. What
// could not be measured is not known; errors are those of the store, and that two ranks have one
// host.
absl::StatusOr<std::optional<Latencies>> MeasureBetween(const MeasuringHost& host,
                                                        const comm::JobKey& key, comm::Store& store,
                                                        Deadline deadline);

// The same for the rank that the environment says. FailedPrecondition: it is no rank of a job of
// `dtrain launch`.
absl::StatusOr<std::optional<Latencies>> MeasureAsRank(const Environment& environment);

}  // namespace dtrain::launcher
