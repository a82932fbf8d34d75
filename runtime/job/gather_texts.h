// Short texts from every rank to every rank.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "comm/group.h"
#include "dtrain/job.h"

namespace dtrain {

// Collective; blocks. The texts in rank order. `deadline`: as CollectiveOptions has it, for ranks
// that come late.
absl::StatusOr<std::vector<std::string>> GatherTexts(comm::Group& group, const std::string& mine,
                                                     Deadline deadline);

// Collective. OK if `mine` is on every rank. Otherwise all ranks get the error of the first rank
// that has one; where others have none or another, the message begins with its rank.
absl::Status AgreeOnError(Job& job, const absl::Status& mine);

// Collective. InvalidArgument on all ranks where the texts differ: `say` makes the message of rank
// 0's text and the first other one.
using SayDifference =
    absl::FunctionRef<std::string(const std::string& first, const std::string& other, int rank)>;
absl::Status CheckSameOnRanks(Job& job, const std::string& mine, SayDifference say);

}  // namespace dtrain
