// Job::Stop: one rank's wish ends the training of all, with a save and exit code 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/agent_channel.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/main.h"
#include "runtime/job/job_state.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/testing/agent_end.h"

namespace dtrain::early_stop_test {
namespace {

using testing::Chain;
using testing::RankContext;

struct Tokens {
  absl::StatusOr<at::Tensor> Next() { return at::full({2}, 1, at::kLong); }
};

absl::Status Expect(bool good, const std::string& what) {
  return good ? absl::OkStatus() : absl::InternalError(what);
}

// Trains until MaybeSave ends it. The last rank asks for the end after step 2.
absl::Status TrainUntilStopped(Job& job, int* steps) {
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  Tokens source;
  while (engine->step() < 10) {
    DT_RETURN_IF_ERROR(
        engine->Step(source, [&](const at::Tensor& tokens) { return Loss(model.Loss(tokens), 2); })
            .status());
    *steps = static_cast<int>(engine->step());
    if (engine->step() == 2 && job.rank() == job.world_size() - 1) {
      job.Stop("the loss rises");
    }
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  return checkpoints->Finish();
}

TEST(EarlyStopTest, AllRanksEndBehindTheNextStepWithASaveAndTheReason) {
  for (const int size : {1, 2, 3}) {
    const testing::TempFolder shared;
    for (const auto& result :
         testing::RunRanks({.size = size}, [&](RankContext& context) -> absl::Status {
           at::set_num_threads(1);
           const testing::TempFolder folder;
           DT_ASSIGN_OR_RETURN(
               auto job,
               testing::MakeChainJob(
                   &context, folder.path(),
                   {.stage = 0,
                    .more = {absl::StrCat("checkpoint.dir=", shared.path(), "/", size)}}));
           AgentEnd agent;
           DT_ASSIGN_OR_RETURN(job->state().agent, AgentChannel::Connect(agent.path()));
           agent.Accept();
           int steps = 0;
           const absl::Status end = TrainUntilStopped(*job, &steps);
           DT_RETURN_IF_ERROR(Expect(steps == 3, absl::StrCat("ended after ", steps)));
           // The agent says by them what is left of the time for a stop.
           for (const char* const stage : {AgentMessage::kStepFinished, AgentMessage::kStepSaved}) {
             DT_ASSIGN_OR_RETURN(const AgentMessage told, AgentMessage::Parse(agent.TakeArrived()));
             DT_RETURN_IF_ERROR(Expect(told.kind == AgentMessage::Kind::kStopping &&
                                           told.rank == context.rank && told.step == 3 &&
                                           told.phase == stage,
                                       told.Encode()));
           }
           DT_RETURN_IF_ERROR(
               Expect(job->stop_agreed() && job->stop_signal() == Job::kProgramStop, "agreed"));
           return Expect(absl::IsCancelled(end) &&
                             absl::StrContains(end.message(),
                                               "stopped by the program (the loss rises) after step "
                                               "3, which is saved"),
                         end.ToString());
         })) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

// A loop that looks at stop_agreed() itself goes on to its own end.
absl::Status StopsByItself(Job& job) {
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  Tokens source;
  job.Stop("it is good enough");
  while (!job.stop_agreed()) {
    DT_RETURN_IF_ERROR(
        engine->Step(source, [&](const at::Tensor& tokens) { return Loss(model.Loss(tokens), 2); })
            .status());
  }
  DT_RETURN_IF_ERROR(Expect(engine->step() == 1, "one step"));
  return checkpoints->Finish();
}

absl::Status StopsInMaybeSave(Job& job) {
  int steps = 0;
  return TrainUntilStopped(job, &steps);
}

// Cancelled of the program's own is no stop with a save behind it.
absl::Status IsCancelledByItself(Job& job) {
  job.Stop("it is good enough");
  return absl::CancelledError("a queue of the program's was closed");
}

// Whether a program ends with `code`, in a process of its own.
bool EndsWith(int code, absl::Status (*train)(Job&)) {
  const testing::TempFolder folder;
  const auto results = testing::RunRanks({.size = 1}, [&](RankContext&) -> absl::Status {
    at::set_num_threads(1);
    std::vector<std::string> words = {"program",       "--run-dir", folder.path() + "/run", "--set",
                                      "device=cpu",    "--set",     "train_batch_size=1",   "--set",
                                      "train_steps=10"};
    std::vector<char*> arguments;
    for (std::string& word : words) {
      arguments.push_back(word.data());
    }
    const int ended = Main(static_cast<int>(arguments.size()), arguments.data(), train);
    return ended == code ? absl::OkStatus()
                         : absl::InternalError(absl::StrCat("exit code ", ended));
  });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  return results[0].status.ok();
}

TEST(EarlyStopTest, TheProgramEndsWithZero) {
  EXPECT_TRUE(EndsWith(0, StopsInMaybeSave));
  EXPECT_TRUE(EndsWith(0, StopsByItself));
}

TEST(EarlyStopTest, AnErrorOfTheProgramsOwnBehindStopIsNoGoodEnd) {
  EXPECT_TRUE(EndsWith(130, IsCancelledByItself));
}

}  // namespace
}  // namespace dtrain::early_stop_test
