#include "runtime/engine/agreement.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain {
namespace {

constexpr char kOnAllRanks[] = "dtrain/on-all-ranks";

// Ranks that update by different rates would drift apart.
absl::Status CompareRates(const std::vector<StepVote>& votes) {
  for (size_t rank = 1; rank < votes.size(); ++rank) {
    if (votes[rank].lr_factor != votes[0].lr_factor) {
      return OnAllRanks(absl::InvalidArgumentError(
          absl::StrFormat("EngineOptions::lr_factor gives %g on rank 0 and %g on rank %d for step "
                          "%d; it must depend on the step alone",
                          votes[0].lr_factor, votes[rank].lr_factor, rank, votes[0].step + 1)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StepVerdict> Decide(const std::vector<StepVote>& votes) {
  StepVerdict verdict{.compares_unused = true};
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const StepVote& vote = votes[rank];
    if (vote.step != votes[0].step || vote.epoch != votes[0].epoch) {
      return OnAllRanks(absl::InternalError(
          absl::StrFormat("ranks disagree before the update: rank %d is at step %d epoch %d, rank "
                          "0 at step %d epoch "
                          "%d",
                          rank, vote.step, vote.epoch, votes[0].step, votes[0].epoch)));
    }
    verdict.loss_sum += vote.loss_sum;
    verdict.count += vote.count;
    verdict.samples += vote.samples;
    verdict.compares_unused = verdict.compares_unused && vote.unused_parameters > 0;
    verdict.finite = verdict.finite && std::isfinite(vote.sum_of_squares);
    if (vote.of_shard != 0 || rank == 0) {
      verdict.sum_of_squares += vote.sum_of_squares;
    }
    verdict.buffers_changed = verdict.buffers_changed || vote.buffers_changed != 0;
    if (verdict.stop_signal == 0) {
      verdict.stop_signal = vote.stop_signal;
    }
    verdict.ranks_with_batch += vote.has_batch != 0 ? 1 : 0;
    verdict.micro_batch_s = std::max(verdict.micro_batch_s, vote.micro_batch_s);
    verdict.save |= vote.save;
    if (vote.lacks_spare != 0 && verdict.rank_without_spare < 0) {
      verdict.rank_without_spare = static_cast<int>(rank);
    }
    if (vote.failed != 0 && !verdict.failed) {
      verdict.failed = true;
      verdict.failed_rank = static_cast<int>(rank);
    }
  }
  if (!verdict.failed) {
    DT_RETURN_IF_ERROR(CompareRates(votes));
  }
  return verdict;
}

absl::StatusOr<StepVerdict> Agree(comm::Group& group, const StepVote& vote, const char* name,
                                  Deadline deadline) {
  std::vector<StepVote> votes(static_cast<size_t>(group.size()));
  StepVote mine = vote;
  const comm::Buffer input{&mine, sizeof(mine), DType::kUInt8, {}};
  const comm::Buffer output{votes.data(), votes.size() * sizeof(StepVote), DType::kUInt8, {}};
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      group.AllGather(input, output, {.name = name, .caller_waits = true, .deadline = deadline}));
  DT_RETURN_IF_ERROR(work.Wait());
  return Decide(votes);
}

absl::Status OnAllRanks(absl::Status failure) {
  failure.SetPayload(kOnAllRanks, absl::Cord());
  return failure;
}

bool TakeMark(absl::Status& failure) { return failure.ErasePayload(kOnAllRanks); }

}  // namespace dtrain
