// The four kinds of hang are told apart and the right ranks named; what may take its time is no
// hang.
#include "launcher/watch/hang.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::hang_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr StepStatistics kSteps{.steps = 100, .p99_s = 0.5, .pause_s = 0.6};  // The limit is 2.5 s.
constexpr HangLimits kLimits{.fixed_s = -1, .patience_s = 10, .slow_s = 600};

RankView Rank(int rank, const char* phase, double still_s) {
  RankView view;
  view.rank = rank;
  view.pid = 4000 + rank;
  view.host = "h";
  view.step = 17;
  view.phase = phase;
  view.limits = kLimits;
  view.still_s = still_s;
  return view;
}

RankView At(RankView view, uint64_t left, uint64_t entered, const char* call = "all_reduce \"b\"") {
  view.groups.push_back({.group = "world", .entered = entered, .left = left, .call = call});
  return view;
}

TEST(Hang, ARankThatHasNotEnteredTheCollectiveInWhichOthersWaitIsNamed) {
  const std::vector<RankView> views = {At(Rank(0, "update", 2.8), 213, 214),
                                       At(Rank(1, "data", 2.9), 213, 213),
                                       At(Rank(2, "update", 2.8), 213, 214)};
  const auto hang = FindHang(views, 3, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kNeverEntered);
  EXPECT_THAT(hang->ranks, ElementsAre(1));
  EXPECT_EQ(hang->group, "world");
  EXPECT_EQ(hang->collective, 214U);
  EXPECT_EQ(hang->limit_s, 2.5);
  EXPECT_THAT(hang->text,
              AllOf(HasSubstr("rank 1 (host h, pid 4001) has not entered collective 214"),
                    HasSubstr("in which ranks 0, 2 wait"), HasSubstr("its data source"),
                    HasSubstr("2.9 s without progress, limit 2.5 s")));
}

TEST(Hang, BelowTheLimitNobodyIsBlamed) {
  const std::vector<RankView> views = {At(Rank(0, "update", 2.4), 213, 214),
                                       At(Rank(1, "data", 2.4), 213, 213)};
  EXPECT_FALSE(FindHang(views, 2, kSteps).has_value());
  EXPECT_EQ(HangLimit(views[1], {.steps = 100, .p99_s = 0.01}, true), 1)
      << "the floor of short steps";
}

TEST(Hang, RanksInDifferentCollectivesAtTheSamePlaceAreAMismatch) {
  const std::vector<RankView> views = {At(Rank(0, "update", 3), 9, 10, "all_reduce \"a\" 4 bytes"),
                                       At(Rank(1, "update", 3), 9, 10, "all_reduce \"a\" 8 bytes"),
                                       At(Rank(2, "update", 3), 9, 10, "all_reduce \"a\" 4 bytes")};
  const auto hang = FindHang(views, 3, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kMismatch);
  EXPECT_THAT(hang->ranks, ElementsAre(1));
  EXPECT_THAT(hang->text, AllOf(HasSubstr("rank 1 (host h, pid 4001) is in another collective"),
                                HasSubstr("8 bytes"), HasSubstr("4 bytes")));
}

TEST(Hang, ARankThatWaitsInAnotherGroupThanTheOthersIsAMismatch) {
  RankView other = At(Rank(2, "backward", 3), 9, 9);
  other.groups.push_back({.group = "part", .entered = 4, .left = 3, .call = "barrier"});
  const std::vector<RankView> views = {At(Rank(0, "update", 3), 9, 10),
                                       At(Rank(1, "update", 3), 9, 10), other};
  const auto hang = FindHang(views, 3, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kMismatch);
  EXPECT_THAT(hang->ranks, ElementsAre(2));
}

TEST(Hang, ARankThatDoesNotLeaveWhatOthersHaveLeftIsNamed) {
  std::vector<RankView> views = {At(Rank(0, "update", 11), 10, 11),
                                 At(Rank(1, "update", 12), 9, 10),
                                 At(Rank(2, "update", 11), 10, 11)};
  const auto hang = FindHang(views, 3, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kNotReturned);
  EXPECT_THAT(hang->ranks, ElementsAre(1));
  EXPECT_EQ(hang->collective, 10U);
  EXPECT_THAT(hang->text, HasSubstr("while ranks 0, 2 have left it"));
  for (RankView& view : views) {
    view.still_s = 5;  // A link that is down for a moment does the same.
  }
  EXPECT_FALSE(FindHang(views, 3, kSteps).has_value());
}

TEST(Hang, AProcessThatASignalHasStoppedInsideACollectiveIsNamedAtTheShortLimit) {
  std::vector<RankView> views = {At(Rank(0, "update", 3), 9, 10), At(Rank(1, "update", 3), 9, 10)};
  EXPECT_FALSE(FindHang(views, 2, kSteps).has_value()) << "a link may be down for a moment";
  views[1].is_stopped = true;
  const auto hang = FindHang(views, 2, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kNotReturned);
  EXPECT_THAT(hang->ranks, ElementsAre(1));
  EXPECT_THAT(hang->text, HasSubstr("a signal has stopped its process"));
}

TEST(Hang, AStoppedProcessIsNamedAheadOfItsLimitAndNoOtherIs) {
  RankView view = Rank(0, "forward", 2.4);  // The limit is 2.5 s.
  EXPECT_FALSE(FindHang({{view}}, 1, kSteps).has_value());
  view.is_stopped = true;
  const auto hang = FindHang({{view}}, 1, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->limit_s, 2.5);
  view.still_s = 2.3;
  EXPECT_FALSE(FindHang({{view}}, 1, kSteps).has_value());
}

// The verdict on ranks that do not move changes at these moments alone.
TEST(Hang, TheNextLimitIsThatWhichPassesFirst) {
  const auto until = [](const std::vector<RankView>& views) {
    return UntilNextLimit(views, kSteps).value_or(-1);
  };
  const auto at = [](double still_s) {
    RankView view = Rank(0, "data", still_s);
    view.silent_s = 3;
    return view;
  };
  EXPECT_DOUBLE_EQ(until({at(0.3)}), 2.375 - 0.3) << "a signal may have stopped it";
  EXPECT_DOUBLE_EQ(until({at(2.4)}), 2.5 - 2.4);
  EXPECT_DOUBLE_EQ(until({at(2.6)}), 10 - 2.6) << "it may wait for a disk";
  EXPECT_DOUBLE_EQ(until({at(11)}), 600 - 11) << "or save";
  EXPECT_EQ(until({at(601)}), -1);
  EXPECT_DOUBLE_EQ(until({at(2.6), at(0.4)}), 2.375 - 0.4);
  RankView view = at(2.6);
  view.silent_s = 2.25;
  EXPECT_DOUBLE_EQ(until({view}), 0.25) << "it falls silent as a whole";
  view = at(0.2);
  view.limits.data_s = 1.5;
  EXPECT_DOUBLE_EQ(until({view}), 1.3);
  view.has_ended = true;
  EXPECT_EQ(until({view}), -1);
  view = at(0.2);
  view.limits.fixed_s = 0;  // The detection is off.
  EXPECT_EQ(until({view}), -1);
}

TEST(Hang, AProcessThatIsSilentIsNamedBeforeThoseThatWaitAndBeat) {
  std::vector<RankView> views = {At(Rank(0, "update", 3), 9, 10), At(Rank(1, "update", 3), 9, 10)};
  views[0].silent_s = 2.9;
  views[1].silent_s = 0.2;
  const auto hang = FindHang(views, 2, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_THAT(hang->ranks, ElementsAre(0));
}

TEST(Hang, WhenAllAreInTheSameCollectiveNobodyIsMissing) {
  const std::vector<RankView> views = {At(Rank(0, "update", 11), 9, 10),
                                       At(Rank(1, "update", 12), 9, 10)};
  const auto hang = FindHang(views, 2, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kAllStuck);
  EXPECT_THAT(hang->ranks, ElementsAre(1, 0));
  EXPECT_THAT(hang->text, HasSubstr("all 2 ranks are stuck in collective 10"));
  EXPECT_FALSE(FindHang(views, 3, kSteps).has_value()) << "the third may be the one they wait for";
}

TEST(Hang, OutsideOfCollectivesARankIsFoundWithoutAnyoneThatWaitsForIt) {
  const auto hang = FindHang({{Rank(0, "forward", 2.6)}}, 1, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kOutside);
  EXPECT_THAT(hang->text,
              HasSubstr("hangs outside of collectives: it is in forward after step 17"));
}

TEST(Hang, WhatMayTakeItsTimeHasLongerLimits) {
  EXPECT_EQ(HangLimit(Rank(0, "backward", 0), kSteps, true), 2.5);
  EXPECT_EQ(HangLimit(Rank(0, "program", 0), kSteps, true), 10);
  EXPECT_EQ(HangLimit(Rank(0, "program", 0), kSteps, /*is_awaited=*/false), 600);
  for (const char* const phase : {"start", "save", "eval", "unheard-of"}) {
    EXPECT_EQ(HangLimit(Rank(0, phase, 0), kSteps, true), 600) << phase;
  }
  RankView reads = Rank(0, "data", 0);
  reads.waits_for_disk = true;
  EXPECT_EQ(HangLimit(reads, kSteps, true), 10);
  RankView stopped = Rank(0, "save", 0);
  stopped.is_stopped = true;
  EXPECT_EQ(HangLimit(stopped, kSteps, true), 2.5);
  stopped.waits_for_disk = true;
  EXPECT_EQ(HangLimit(stopped, kSteps, true), 2.5);
}

TEST(Hang, AProcessThatADiskStopsWholeHasTheDisksTime) {
  RankView silent = Rank(0, "save", 0);
  silent.silent_s = 3;
  EXPECT_EQ(HangLimit(silent, kSteps, true), 2.5);
  silent.waits_for_disk = true;
  EXPECT_EQ(HangLimit(silent, kSteps, true), 10);
}

TEST(Hang, AGpusStepsHaveALeastLimitAndTheFirstOnesTheLimitOfAStart) {
  RankView view = Rank(0, "update", 0);
  view.limits.fixed_s = -60;
  EXPECT_EQ(HangLimit(view, kSteps, true), 60);
  EXPECT_EQ(HangLimit(view, {.steps = 100, .p99_s = 20}, true), 100);
  EXPECT_EQ(HangLimit(view, {.steps = 9, .p99_s = 0.5}, true), 600);
}

TEST(Hang, ACallOfTheProgramItselfMayTakeAsLongAsASave) {
  const auto views = [](double still_s) {
    return std::vector<RankView>{At(Rank(0, "program", still_s), 7, 8, "all_gather \"mine\""),
                                 At(Rank(1, "program", still_s), 7, 8, "all_gather \"mine\"")};
  };
  EXPECT_FALSE(FindHang(views(590), 2, kSteps).has_value());
  EXPECT_TRUE(FindHang(views(610), 2, kSteps).has_value());
}

TEST(Hang, APauseThatCameToAnEndTellsWhatTheNextOneMayTake) {
  const StepStatistics paused{.steps = 100, .p99_s = 0.1, .pause_s = 0.9};
  EXPECT_EQ(HangLimit(Rank(0, "data", 0), paused, true), 1.8);
}

// Its source waits for a network, while the others wait for it in a collective.
TEST(Hang, ADataSourceMayHaveALimitOfItsOwn) {
  const auto views = [](double still_s, double data_s) {
    std::vector<RankView> ranks = {At(Rank(0, "update", still_s), 9, 10),
                                   At(Rank(1, "data", still_s + 0.1), 9, 9),
                                   At(Rank(2, "update", still_s), 9, 10)};
    for (RankView& rank : ranks) {
      rank.limits.data_s = data_s;
    }
    return ranks;
  };
  EXPECT_TRUE(FindHang(views(3, /*data_s=*/0), 3, kSteps).has_value()) << "as in a step";
  EXPECT_FALSE(FindHang(views(29, /*data_s=*/30), 3, kSteps).has_value());
  const StepStatistics first{.steps = 1, .p99_s = 0.5};  // Nothing is learnt yet.
  for (const StepStatistics& steps : {kSteps, first}) {
    const auto hang = FindHang(views(30, /*data_s=*/30), 3, steps);
    ASSERT_TRUE(hang.has_value()) << steps.steps;
    EXPECT_EQ(hang->kind, HangKind::kNeverEntered);
    EXPECT_THAT(hang->ranks, ElementsAre(1));
    EXPECT_EQ(hang->limit_s, 30);
    EXPECT_THAT(hang->text, AllOf(HasSubstr("ranks 0, 2 wait: it waits for its data source"),
                                  HasSubstr("30.1 s without progress, limit 30.0 s")));
  }
  EXPECT_FALSE(FindHang(views(30, /*data_s=*/0), 3, first).has_value()) << "up to 600 s";
}

TEST(Hang, ADataSourcesLimitMayBeShorterThanThatOfAStep) {
  RankView alone = Rank(0, "data", 2);
  alone.limits.data_s = 1.5;
  const auto hang = FindHang({{alone}}, 1, kSteps);
  ASSERT_TRUE(hang.has_value()) << "a step has 2.5 s";
  EXPECT_EQ(hang->kind, HangKind::kOutside);
  alone.waits_for_disk = true;
  EXPECT_EQ(HangLimit(alone, kSteps, true), 10);
  alone.waits_for_disk = false;
  alone.limits.fixed_s = 0;
  EXPECT_FALSE(FindHang({{alone}}, 1, kSteps).has_value()) << "the detection is off";
  RankView forward = Rank(0, "forward", 2);
  forward.limits.data_s = 1.5;
  EXPECT_FALSE(FindHang({{forward}}, 1, kSteps).has_value());
}

TEST(Hang, AStoppedProcessHasNoMoreTimeForItsData) {
  RankView stopped = Rank(0, "data", 3);
  stopped.limits.data_s = 30;
  stopped.is_stopped = true;
  EXPECT_TRUE(FindHang({{stopped}}, 1, kSteps).has_value());
}

TEST(Hang, TheFirstStepsAreNoMeasure) {
  const StepStatistics first{.steps = kStepsBeforeLearning - 1, .p99_s = 0.01};
  EXPECT_EQ(HangLimit(Rank(0, "forward", 0), first, true), 600);
  const StepStatistics enough{.steps = kStepsBeforeLearning, .p99_s = 0.01};
  EXPECT_EQ(HangLimit(Rank(0, "forward", 0), enough, true), 1);
}

TEST(Hang, TheConfigurationSetsTheLimitOrTurnsItOff) {
  RankView view = Rank(0, "forward", 50);
  view.limits.fixed_s = 60;
  EXPECT_FALSE(FindHang({{view}}, 1, kSteps).has_value());
  view.still_s = 61;
  EXPECT_TRUE(FindHang({{view}}, 1, {}).has_value()) << "it needs nothing that is learnt";
  view.limits.fixed_s = 0;
  EXPECT_FALSE(FindHang({{view}}, 1, kSteps).has_value());
  view.limits = {};
  EXPECT_FALSE(FindHang({{view}}, 1, kSteps).has_value()) << "a program without dtrain";
}

TEST(Hang, ARankThatWorksWhileOthersWaitIsNotBlamed) {
  const std::vector<RankView> views = {At(Rank(0, "update", 8), 9, 10),
                                       At(Rank(1, "program", 8.1), 9, 9)};
  EXPECT_FALSE(FindHang(views, 2, kSteps).has_value()) << "an export on rank 1, up to 10 s";
}

TEST(Hang, TheProgramsOwnCodeMayTakeItsTimeWhileNobodyWaitsForIt) {
  std::vector<RankView> views = {At(Rank(0, "program", 60), 9, 9),
                                 At(Rank(1, "program", 60), 9, 9)};
  EXPECT_FALSE(FindHang(views, 2, kSteps).has_value());
  views[1].groups[0].entered = 10;
  const auto hang = FindHang(views, 2, kSteps);
  ASSERT_TRUE(hang.has_value());
  EXPECT_EQ(hang->kind, HangKind::kNeverEntered);
  EXPECT_THAT(hang->ranks, ElementsAre(0));
}

TEST(Hang, WhileSomebodyDebugsARankNobodyHangs) {
  std::vector<RankView> views = {At(Rank(0, "update", 300), 9, 10), At(Rank(1, "data", 300), 9, 9)};
  views[1].is_debugged = true;
  EXPECT_FALSE(FindHang(views, 2, kSteps).has_value());
  views[1].is_debugged = false;
  EXPECT_TRUE(FindHang(views, 2, kSteps).has_value());
}

TEST(Hang, ARankThatHasEndedExplainsThatOthersWait) {
  std::vector<RankView> views = {At(Rank(0, "update", 30), 9, 10), At(Rank(1, "update", 30), 9, 9)};
  views[1].has_ended = true;
  EXPECT_FALSE(FindHang(views, 2, kSteps).has_value());
}

// In a random healthy job each rank is somewhere in the step, and has moved within the longest
// step; one that then stands still is the only one that is named, whatever the others do.
TEST(Hang, AmongRandomRanksOnlyTheOneThatStandsStillIsNamed) {
  constexpr uint64_t kSeed = 20;
  SplitMix64 random(kSeed);
  const std::vector<const char*> phases = {"data", "forward", "backward", "update"};
  for (int trial = 0; trial < 2000; ++trial) {
    const int ranks = 2 + static_cast<int>(random.Below(30));
    std::vector<RankView> views;
    for (int rank = 0; rank < ranks; ++rank) {
      const bool waits = random.Below(2) == 0;
      const double still = 0.5 * random.Uniform();
      views.push_back(At(Rank(rank, phases[random.Below(4)], still), 99, waits ? 100 : 99));
    }
    ASSERT_FALSE(FindHang(views, ranks, kSteps).has_value()) << "seed " << kSeed;
    const auto hung = static_cast<int>(random.Below(static_cast<uint64_t>(ranks)));
    for (RankView& view : views) {  // Soon all others wait for it.
      view.groups[0].entered = 100;
      view.still_s += 2.6;
    }
    views[static_cast<size_t>(hung)].groups[0].entered = 99;
    const auto hang = FindHang(views, ranks, kSteps);
    ASSERT_TRUE(hang.has_value()) << "seed " << kSeed << " trial " << trial;
    EXPECT_EQ(hang->kind, HangKind::kNeverEntered);
    EXPECT_THAT(hang->ranks, ElementsAre(hung));
  }
}

TEST(Summary, IsReadBackAsItWas) {
  NodeSummary summary;
  summary.attempt = 3;
  summary.ranks = {At(Rank(5, "forward", 1.5), 7, 8)};
  summary.ranks[0].is_stopped = true;
  summary.ranks[0].limits.data_s = 30;
  summary.ranks[0].node = 2;
  summary.steps = kSteps;
  summary.blocks = Json::array({Json::array({1, 2})});
  const auto read = ParseSummary(EncodeSummary(summary));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->attempt, 3);
  EXPECT_EQ(read->steps.steps, 100);
  EXPECT_EQ(read->steps.p99_s, 0.5);
  EXPECT_EQ(read->steps.pause_s, 0.6);
  ASSERT_EQ(read->ranks.size(), 1U);
  const RankView& view = read->ranks[0];
  EXPECT_EQ(RankName(view), "rank 5 (host h, pid 4005)");
  EXPECT_EQ(view.node, 2);
  EXPECT_EQ(view.phase, "forward");
  EXPECT_EQ(view.still_s, 1.5);
  EXPECT_EQ(view.limits.slow_s, 600);
  EXPECT_EQ(view.limits.data_s, 30);
  EXPECT_TRUE(view.is_stopped);
  EXPECT_FALSE(view.waits_for_disk);
  ASSERT_NE(view.Inside(), nullptr);
  EXPECT_EQ(view.Inside()->call, "all_reduce \"b\"");
  EXPECT_TRUE(read->blocks == summary.blocks) << DumpJson(read->blocks);
}

TEST(Summary, OfManyRanksStaysWithinItsBound) {
  NodeSummary summary;
  const std::string call = absl::StrCat("all_reduce \"", std::string(300, 'x'), "\"");
  for (int rank = 0; rank < 128; ++rank) {
    summary.ranks.push_back(At(Rank(rank, "forward", 1), 7, 8, call.c_str()));
  }
  for (int block = 0; block < 5000; ++block) {
    summary.blocks.push_back(Json::array({block, 0.123456789}));
  }
  const std::string text = EncodeSummary(summary);
  EXPECT_LT(text.size(), kSummaryBytesMax);
  auto read = ParseSummary(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ranks.size(), 128U);
  // A call that was cut is the same call as the whole one.
  read->ranks[1].groups[0].call = call.substr(0, 200);
  std::vector<RankView> two(read->ranks.begin(), read->ranks.begin() + 2);
  for (RankView& view : two) {
    view.still_s = 20;
  }
  EXPECT_EQ(FindHang(two, 2, kSteps)->kind, HangKind::kAllStuck);
}

TEST(Summary, WhatNoNodeSendsIsRefused) {
  for (const char* const text :
       {"", "[]", "{}", R"({"attempt":0,"ranks":[{}],"steps":[1,1,1],"blocks":[]})",
        R"({"attempt":0,"ranks":[],"steps":["a",1,1],"blocks":[]})"}) {
    EXPECT_EQ(ParseSummary(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace dtrain::launcher::hang_test
