// Loops that ranks run while a test kills or stops one of them.
#pragma once

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/group.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm {

// Runs all-reduces of `floats` elements on all ranks without an end; announces "endedR" and gives
// the error that ended them. After `announce_at` rounds rank R announces "rankR"; AwaitRounds waits
// for all.
inline absl::Status ReduceUntilAnError(testing::RankContext& context, const GroupOptions& options,
                                       size_t floats, int announce_at = 3) {
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
  std::vector<float> values(floats);
  for (int round = 0;; ++round) {
    std::fill(values.begin(), values.end(), 1.0F);
    DT_ASSIGN_OR_RETURN(const Work work,
                        group->AllReduce({values.data(), floats * 4}, ReduceOp::kSum));
    if (const absl::Status status = work.Wait(); !status.ok()) {
      DT_RETURN_IF_ERROR(context.Announce(absl::StrCat("ended", context.rank)));
      return status;
    }
    const auto want = static_cast<float>(context.size);
    if (values.front() != want || values.back() != want) {
      return absl::InternalError("wrong sum");
    }
    if (round == announce_at) {
      DT_RETURN_IF_ERROR(context.Announce(absl::StrCat("rank", context.rank)));
    }
  }
}

inline absl::Status AwaitRounds(testing::Cluster& cluster, int size) {
  for (int rank = 0; rank < size; ++rank) {
    DT_RETURN_IF_ERROR(cluster.Await(absl::StrCat("rank", rank)));
  }
  return absl::OkStatus();
}

// Whether the error is that of a killed rank, seen in a call or, if another rank saw it first,
// before the next call.
inline bool EndedByAKill(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         (status.code() == absl::StatusCode::kAborted &&
          absl::StrContains(status.message(), "the group was broken before this call"));
}

}  // namespace dtrain::comm
