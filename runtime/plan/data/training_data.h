// The training data of a configuration: its parts, and how many steps an epoch of them takes.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/config.h"
#include "runtime/plan/data/token_corpus.h"

namespace dtrain::plan {

// The parts of data.train; one, unless it is a mixture.
std::vector<CorpusPart> TrainingParts(const Config& config);

// The steps of an epoch by the token files of data.train on this machine, of which only the headers
// are read. An error says why the number is not known here: no files are named, because the program
// has data of its own, or they are at addresses or on another machine.
absl::StatusOr<double> StepsPerEpoch(const Config& config);

}  // namespace dtrain::plan
