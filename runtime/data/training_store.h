// The store behind which a job's token files at addresses lie, as its configuration and environment
// set it up.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/job.h"
#include "runtime/plan/data/data_store.h"
#include "runtime/plan/data/token_corpus.h"

namespace dtrain {

// Null: all files of the parts are on this host. The errors of remote::OpenRemoteStore.
absl::StatusOr<std::unique_ptr<plan::DataStore>> OpenTrainingStore(
    const std::vector<plan::CorpusPart>& parts, Job& job);

}  // namespace dtrain
