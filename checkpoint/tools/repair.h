// Looks through a folder of checkpoints and mends what a crash may have left: saves that did not
// end, temporary files, the hint `latest`. A folder with a manifest is never removed, whatever is
// wrong with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/format/step_id.h"
#include "checkpoint/storage/storage.h"

namespace dtrain::checkpoint {

struct Leftover {
  std::string path;  // Relative to the folder of checkpoints.
  bool is_folder = false;
  uint64_t bytes = 0;
  std::string why_it_stays;  // "": it goes.
};

struct Damage {
  std::string name;  // "step-000000001200.e1", or the path of an epoch record.
  std::string what;  // File, what is wrong with it, and where.
};

struct RepairPlan {
  size_t checkpoints = 0;  // Number of those that have a manifest.
  std::vector<Leftover> leftovers;
  std::vector<Damage> damage;
  // To be written into `latest`; "": it is right, or no checkpoint could be named.
  std::string latest;
  // A new epoch must begin before the leftovers of the newest attempt are removed, so that no
  // process of it that still lives somewhere can commit what is left of them.
  bool fence = false;
  std::optional<StepId> resume_from;  // For that epoch.
  std::string job;
  int world_size = 1;
  int64_t ended_epoch = 0;  // Attempts up to this one write no more once the plan is carried out.
};

// Reads every byte of all checkpoints and writes nothing. Errors are those of reading that may be
// temporary, or that another user could avoid; damage is no error. NotFound: no run has ever saved
// here, so that files which are called like temporary ones are somebody else's.
absl::StatusOr<RepairPlan> PlanRepair(Storage& storage);

// Does what the plan says. REQUIRES: no process of this machine uses the folder.
absl::Status Repair(Storage& storage, const RepairPlan& plan);

}  // namespace dtrain::checkpoint
