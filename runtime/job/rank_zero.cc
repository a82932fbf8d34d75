#include "runtime/job/rank_zero.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/wait_notice.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "runtime/job/start_agreement.h"

namespace dtrain {
namespace {

// Another learning rate on one rank would let weights drift apart without a word.
absl::Status CheckSameConfig(const Json& rank_zero, const Job::State& state) {
  const Json mine = state.config->values_in_force();
  for (const auto& [key, value] : rank_zero.items()) {
    const auto found = mine.find(key);
    if (key != "origins" && (found == mine.end() || *found != value)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the configuration differs between ranks: %s is %s on rank 0 and %s on rank %d; give all "
          "ranks the same file and --set",
          key, DumpJson(value), found == mine.end() ? "absent" : DumpJson(*found), state.env.rank));
    }
  }
  return absl::OkStatus();
}

// Rank 0's answers, in the store.
constexpr char kConfiguration[] = "configuration";
constexpr char kRunDirectory[] = "run_directory";
// The others have this time to come and hear why this rank ends.
constexpr absl::Duration kSayWhyNot = absl::Seconds(20);

Json AnswerOf(const absl::Status& error) {
  return {{"code", static_cast<int>(error.code())}, {"message", std::string(error.message())}};
}

void SayAccepted(const RunDirectory& directory) {
  for (const std::string& change : directory.accepted_now) {
    DT_LOG(Warning) << "accepted a change of the run: " << change;
  }
}

// The part of the store in which the ranks agree that a fresh start may move the old run aside.
std::unique_ptr<comm::Store> FreshStart(const Rendezvous& meeting) {
  return comm::NewPrefixStore(meeting.store, "fresh");
}

// Rank 0's answer under `key`, on every rank, or the error that it gave. Alone it is `mine` itself.
absl::StatusOr<Json> AnswerOfRankZero(const Job::State& state, const char* key, const Json& mine,
                                      Deadline deadline) {
  Json answer = mine;
  if (state.rendezvous != nullptr && state.env.rank == 0) {
    DT_RETURN_IF_ERROR(state.rendezvous->store->Set(key, DumpJson(answer), deadline));
  } else if (state.rendezvous != nullptr) {
    const WaitNotice notice(absl::StrFormat("rank %d of %d waits for rank 0 to prepare %s",
                                            state.env.rank, state.env.world_size, state.run_dir));
    DT_ASSIGN_OR_RETURN(const std::string text, state.rendezvous->store->Get(key, deadline));
    DT_ASSIGN_OR_RETURN(answer, ParseJson(text, "rank 0's answer"));
  }
  if (const int code = answer["code"].get<int>(); code != 0) {
    const char* const whose = state.env.rank == 0 ? "" : "rank 0 cannot start: ";
    return absl::Status(static_cast<absl::StatusCode>(code),
                        absl::StrCat(whose, answer["message"].get<std::string>()));
  }
  return answer;
}

}  // namespace

// A run that is moved aside for a job that does not start is gone from its place.
absl::Status CompareConfigurations(Job::State& state, Deadline deadline) {
  DT_ASSIGN_OR_RETURN(
      const Json answer,
      AnswerOfRankZero(
          state, kConfiguration,
          {{"code", 0}, {"fresh", state.fresh}, {"config", state.config->values_in_force()}},
          deadline));
  const absl::Status same = CheckSameConfig(answer["config"], state);
  return state.rendezvous != nullptr && answer["fresh"].get<bool>()
             ? AgreeToStart(*FreshStart(*state.rendezvous), state.env.rank, state.env.world_size,
                            same, deadline)
             : same;
}

absl::Status TakeRunDirectory(Job::State& state, const RunDirectoryOptions& options,
                              Deadline deadline) {
  Json mine;
  if (state.env.rank == 0) {
    const auto directory = PrepareRunDirectory(options, *state.config);
    if (directory.ok()) {
      SayAccepted(*directory);
      state.saved_steps = directory->saved_steps;
    }
    mine = directory.ok() ? Json{{"code", 0},
                                 {"run_id", directory->run_id},
                                 {"fresh", directory->begins_anew},
                                 {"accepted_changes", directory->accepted_changes}}
                          : AnswerOf(directory.status());
  }
  DT_ASSIGN_OR_RETURN(const Json answer, AnswerOfRankZero(state, kRunDirectory, mine, deadline));
  state.run_id = answer["run_id"].get<std::string>();
  state.fresh = answer["fresh"].get<bool>();
  state.accepted_changes = answer["accepted_changes"];
  return absl::OkStatus();
}

absl::Status SayWhyNot(Job::State& state, const absl::Status& reason) {
  if (state.env.world_size == 1 || state.agent.connected()) {
    return reason;
  }
  const Deadline deadline = Deadline::After(kSayWhyNot);
  auto meeting = Meet(state.env, state.run_dir, deadline);
  if (!meeting.ok()) {
    return reason;
  }
  state.rendezvous = *std::move(meeting);
  comm::Store& store = *state.rendezvous->store;
  if (state.env.rank == 0) {  // The others ask for the configuration first.
    store.Set(kConfiguration, DumpJson(AnswerOf(reason)), deadline).IgnoreError();
  } else if (const auto answer = AnswerOfRankZero(state, kConfiguration, {}, deadline);
             answer.ok() && (*answer)["fresh"].get<bool>()) {
    AgreeToStart(*FreshStart(*state.rendezvous), state.env.rank, state.env.world_size, reason,
                 deadline)
        .IgnoreError();
  }
  AgreeToStart(store, state.env.rank, state.env.world_size, reason, deadline).IgnoreError();
  return reason;
}

}  // namespace dtrain
