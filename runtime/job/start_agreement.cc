#include "runtime/job/start_agreement.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/console/wait_notice.h"
#include "base/json.h"
#include "base/status.h"

namespace dtrain {
namespace {

constexpr char kVotes[] = "start";
constexpr char kPlace[] = "the start of the job";  // For people.
constexpr char kVerdict[] = "start_verdict";
constexpr char kLearnt[] = "start_learnt";  // By the ranks that know why the job ends.
// Rank 0 may serve the store: it stays that long for the others to read why they end.
constexpr absl::Duration kFarewell = absl::Seconds(5);

// `rank`: whose status it is.
std::string Encode(int rank, const absl::Status& status) {
  return DumpJson(Json{{"rank", rank},
                       {"code", static_cast<int>(status.code())},
                       {"message", std::string(status.message())}});
}

absl::StatusOr<Json> ReadVote(comm::Store& store, int rank, Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const std::string text, store.Get(comm::RankKey(kVotes, rank), deadline));
  return ParseJson(text, absl::StrFormat("rank %d's answer", rank));
}

// Rank 0's part: the first vote in rank order that is an error, else its own.
absl::StatusOr<Json> Collect(comm::Store& store, int world_size, Deadline deadline) {
  DT_RETURN_IF_ERROR(comm::WaitForRanks(store, kVotes, world_size, deadline, kPlace));
  DT_ASSIGN_OR_RETURN(const Json first, ReadVote(store, 0, deadline));
  for (int rank = 0; rank < world_size; ++rank) {
    DT_ASSIGN_OR_RETURN(const Json vote, ReadVote(store, rank, deadline));
    if (vote["code"] != 0) {
      return vote;
    }
  }
  return first;
}

}  // namespace

absl::Status AgreeToStart(comm::Store& store, int rank, int world_size, const absl::Status& mine,
                          Deadline deadline) {
  DT_RETURN_IF_ERROR(store.Set(comm::RankKey(kVotes, rank), Encode(rank, mine), deadline));
  Json verdict;
  if (rank == 0) {
    DT_ASSIGN_OR_RETURN(verdict, Collect(store, world_size, deadline));
    DT_RETURN_IF_ERROR(store.Set(kVerdict, DumpJson(verdict), deadline));
  } else {
    const WaitNotice notice([&] { return comm::RanksToCome(store, kVotes, world_size, kPlace); });
    DT_ASSIGN_OR_RETURN(const std::string text, store.Get(kVerdict, deadline));
    DT_ASSIGN_OR_RETURN(verdict, ParseJson(text, "rank 0's verdict"));
  }
  const int code = verdict["code"].get<int>();
  if (code == 0) {
    return absl::OkStatus();
  }
  store.Set(comm::RankKey(kLearnt, rank), "1", deadline).IgnoreError();
  if (rank == 0) {
    comm::WaitForRanks(store, kLearnt, world_size, Earlier(deadline, Deadline::After(kFarewell)),
                       "the end of the job")
        .IgnoreError();
  }
  if (!mine.ok()) {
    return mine;  // Its own reason, in its own words.
  }
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrFormat("rank %d cannot start: %s", verdict["rank"].get<int>(),
                                      verdict["message"].get<std::string>()));
}

}  // namespace dtrain
