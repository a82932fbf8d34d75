// Trains device_net.h's model on a GPU, a fake or a real one, with checkpoints and a step journal:
// what tests of the journal there compare.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtrain/job.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/testing/cluster.h"

namespace dtrain::testing {

struct JournalTraining {
  std::vector<std::string> overrides = {};
  int64_t until = 9;      // Steps; every fourth is saved.
  bool ends = true;       // False: the run is cut behind that step.
  int64_t bad_step = -1;  // From 1: its loss is infinite on rank 0.
  // Before and behind MaybeSave.
  std::function<void(Net& net, int64_t step)> after_step = [](Net& /*net*/, int64_t /*step*/) {};
  std::function<void(int64_t step)> after_save = [](int64_t /*step*/) {};
  int64_t width = 64;  // The model's.
};

struct JournalOutcome {
  int64_t resumed = -1;        // The step behind which the run began.
  std::vector<double> losses;  // Those of its steps; -1: not finite.
};

// Gives `job` its device.
using OpenJournalDevice = std::function<absl::Status(RankContext& context, Job& job)>;

// Trains one rank in the run directory `folder`.
absl::Status TrainJournalled(RankContext& context, const std::string& folder,
                             const JournalTraining& training, const OpenJournalDevice& open,
                             JournalOutcome& outcome);

// One rank's training, by TrainJournalled.
using TrainRank = std::function<absl::Status(RankContext& context, JournalOutcome& outcome)>;
// Trains `ranks` ranks; gives what rank 0 found, and fails the test where a rank fails.
JournalOutcome JournalOutcomeOf(int ranks, const std::string& folder, const TrainRank& train);

}  // namespace dtrain::testing
