#include "launcher/ranks/reuse_plan.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::reuse_plan_test {
namespace {

using testing::HasSubstr;

RankEnd EndedWith(int exit_code, int signal = 0) {
  RankEnd end;
  end.exit_code = exit_code;
  end.signal = signal;
  return end;
}

bool MayReuseAfter(const RankEnd& cause) { return MayReuse(&cause, absl::OkStatus()); }

TEST(MayReuse, AfterLostRanksAndNodesOnly) {
  EXPECT_TRUE(MayReuseAfter(EndedWith(75)));
  for (const int signal : {SIGKILL, SIGSEGV, SIGABRT, SIGBUS, SIGTERM}) {
    EXPECT_TRUE(MayReuseAfter(EndedWith(0, signal))) << signal;
  }
  RankEnd hang;
  hang.hang = "never entered";
  EXPECT_TRUE(MayReuseAfter(hang));
  EXPECT_TRUE(MayReuse(nullptr, absl::UnavailableError("node 1 is lost")));
}

TEST(MayReuse, NeverAfterErrorsOfTheProgramOrItsUser) {
  for (const int code : {0, 1, 2, 17, 64, 70, 93, 126, 130, 143}) {
    EXPECT_FALSE(MayReuseAfter(EndedWith(code))) << code;
  }
  for (const int signal : {SIGILL, SIGFPE, SIGSYS, SIGINT}) {
    EXPECT_FALSE(MayReuseAfter(EndedWith(0, signal))) << signal;
  }
  EXPECT_FALSE(MayReuse(nullptr, absl::OkStatus()));
  EXPECT_FALSE(MayReuse(nullptr, absl::InvalidArgumentError("no such program")));
}

// A process with local rank 1 on cores 2 and 3, as the plan of its first attempt had it.
class WhyNotReusedTest : public ::testing::Test {
 protected:
  WhyNotReusedTest() {
    shape_.ranks_of_node = {2, 2};
    shape_.node_rank = 1;
    shape_.run_id = "run";
    shape_.store = "n0:1000";
    shape_.begins_job = true;
    shape_.reuse = true;
    shape_.token_fd = 3;
    slot_.rank = 3;
    slot_.local_rank = 1;
    slot_.cpus = {2, 3};
    slot_.cores = 2;
    kept_ = {.pid = 7, .slot = slot_, .environment = Variables()};
  }
  Environment Variables() const { return RankEnvironment(base_, shape_, slot_); }
  std::string WhyNot() const { return WhyNotReused(kept_, slot_, Variables()); }

  Environment base_ = {{"PATH", "/bin"}};
  JobShape shape_;
  RankSlot slot_;
  KeptRank kept_;
};

TEST_F(WhyNotReusedTest, TheNextAttemptChangesNothingThatAProcessKeeps) {
  shape_.attempt = 4;
  shape_.begins_job = false;
  shape_.store = "n0:2000";
  shape_.master_port = 3000;
  EXPECT_EQ(WhyNot(), "");
}

TEST_F(WhyNotReusedTest, AWorldThatShrinksKeepsTheProcessesOfItsNodes) {
  shape_.ranks_of_node = {2};
  shape_.node_rank = 0;
  slot_.rank = 1;
  EXPECT_EQ(WhyNot(), "");
}

TEST_F(WhyNotReusedTest, AnotherPlaceOnTheNodeNeedsAnotherProcess) {
  slot_.local_rank = 0;
  EXPECT_THAT(WhyNot(), HasSubstr("local rank 1"));
  slot_ = kept_.slot;
  slot_.cpus = {0, 1};
  EXPECT_THAT(WhyNot(), HasSubstr("other cores"));
  slot_ = kept_.slot;
  slot_.memory_node = 1;
  EXPECT_THAT(WhyNot(), HasSubstr("memory"));
}

TEST_F(WhyNotReusedTest, VariablesThatLibrariesReadOnceMayNotChange) {
  shape_.ranks_of_node = {2, 3};  // Each rank has another share of the node.
  EXPECT_THAT(WhyNot(), HasSubstr("LOCAL_WORLD_SIZE"));
  shape_.ranks_of_node = {2, 2};
  shape_.gpu_order = {1, 0};
  EXPECT_THAT(WhyNot(), HasSubstr("CUDA_"));
  shape_.gpu_order = {};
  base_["OMP_NUM_THREADS"] = "1";
  EXPECT_THAT(WhyNot(), HasSubstr("OMP_NUM_THREADS"));
  base_ = {};
  EXPECT_THAT(WhyNot(), HasSubstr("PATH"));
}

TEST_F(WhyNotReusedTest, AProcessTakesOverEachVariableThatMayChange) {
  shape_.attempt = 4;
  shape_.begins_job = false;
  shape_.store = "n0:2000";
  const Environment next = Variables();
  Environment taken = kept_.environment;
  for (const auto& [name, value] : AttemptVariables(next)) {
    taken[name] = value;
  }
  EXPECT_EQ(taken, next);
}

// A process that was started ahead, for the node of these ranks.
class ReserveTest : public WhyNotReusedTest {
 protected:
  ReserveTest() : reserve_(ReserveEnvironment(Variables())) {}

  const Environment reserve_;
};

TEST_F(ReserveTest, NothingMakesItARank) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                 "GROUP_RANK", "MASTER_ADDR", "DTRAIN_STORE", "DTRAIN_ATTEMPT"}) {
    EXPECT_EQ(reserve_.count(name), 0U) << name;
  }
  EXPECT_EQ(reserve_.at("PATH"), "/bin");
  const auto job = ResolveJobEnv(reserve_);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->source, LaunchSource::kAlone);
  EXPECT_TRUE(IsReserve(reserve_));
  EXPECT_TRUE(job->reuse);
}

TEST_F(ReserveTest, ItCanBeAnyRankOfItsNodeInAnyAttempt) {
  for (const int local : {0, 1}) {
    slot_.rank = 2 + local;
    slot_.local_rank = local;
    slot_.nic = local == 0 ? "mlx5_0" : "mlx5_1";
    shape_.attempt = 3 + local;
    const Environment wanted = Variables();
    const auto variables = VariablesForReserve(reserve_, wanted);
    ASSERT_TRUE(variables.has_value()) << local;
    Environment has = reserve_;
    for (const auto& [name, value] : *variables) {
      has[name] = value;
    }
    EXPECT_EQ(has, wanted);
    EXPECT_TRUE(ResolveJobEnv(has).ok());
    EXPECT_FALSE(IsReserve(has));
  }
}

TEST_F(ReserveTest, WhatLibrariesReadWhileTheyAreLoadedMayNotDiffer) {
  slot_.cores = 1;
  EXPECT_FALSE(VariablesForReserve(reserve_, Variables()).has_value()) << "OMP_NUM_THREADS";
  slot_.cores = 2;
  base_["LD_LIBRARY_PATH"] = "/lib";
  EXPECT_FALSE(VariablesForReserve(reserve_, Variables()).has_value());
  base_ = {};  // A variable that it has and the rank has not cannot be taken away.
  EXPECT_FALSE(VariablesForReserve(reserve_, Variables()).has_value());
}

}  // namespace
}  // namespace dtrain::launcher::reuse_plan_test
