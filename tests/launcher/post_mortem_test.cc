// The report about a failed attempt says who was first, and lists those that failed because of it.
#include "launcher/records/post_mortem.h"

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/records/stack_text.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::post_mortem_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RankEnd End(int rank, int exit_code, int signal, int64_t order) {
  RankEnd end;
  end.rank = rank;
  end.pid = 100 + rank;
  end.host = "h";
  end.exit_code = exit_code;
  end.signal = signal;
  end.order = order;
  end.step = 7;
  return end;
}

// Rank 2 was killed; rank 0 lost it, and ranks 1 and 3 were stopped or failed on their own.
PostMortemFacts KilledRank() {
  PostMortemFacts facts;
  facts.run_id = "r";
  facts.attempt = 1;
  facts.world_size = 4;
  facts.exit_code = 137;
  facts.ends = {End(0, kExitTemporary, 0, 0), End(2, 0, SIGKILL, 1), End(1, 0, SIGTERM, 2),
                End(3, 1, 0, 3)};
  facts.ends[2].stopped = true;
  facts.cause = &facts.ends[1];
  return facts;
}

TEST(PostMortem, NamesTheFirstAndPutsTheOthersBehindIt) {
  const Json report = PostMortemJson(KilledRank());
  EXPECT_EQ(report["v"], 1);
  EXPECT_EQ(report["kind"], "signal");
  EXPECT_EQ(report["first"]["rank"], 2);
  EXPECT_EQ(report["first"]["signal"], "SIGKILL");
  EXPECT_EQ(report["exit_code"], 137);
  EXPECT_EQ(report["ends"][0]["role"], "follower");
  EXPECT_EQ(report["ends"][1]["role"], "first");
  EXPECT_EQ(report["ends"][2]["role"], "stopped");
  EXPECT_EQ(report["ends"][3]["role"], "failed_too");
  EXPECT_THAT(
      PostMortemText(report),
      AllOf(HasSubstr("rank 2 killed by signal 9 (SIGKILL), pid 102 on host h, after step 7"),
            HasSubstr("ranks that failed because of it: 0\n"),
            HasSubstr("ranks that were stopped after it: 1\n"),
            HasSubstr("ranks that failed for a reason of their own: 3\n")));
}

TEST(PostMortem, ARankThatTheKernelKilledForMemoryIsSaidToBe) {
  PostMortemFacts facts = KilledRank();
  facts.kernel = {
      {.kind = "out_of_memory", .text = "Out of memory: Killed process 7 (x)", .pid = 7}};
  EXPECT_EQ(PostMortemJson(facts)["kind"], "signal") << "another process";
  facts.kernel[0].pid = 102;
  const Json report = PostMortemJson(facts);
  EXPECT_EQ(report["kind"], "out_of_memory");
  EXPECT_THAT(report["what"].get<std::string>(), HasSubstr("the kernel killed it"));
  EXPECT_EQ(report["kernel"]["messages"][0]["pid"], 102);
}

// The kernel's messages are often hidden from users, and from containers always.
TEST(PostMortem, TheCountOfItsMemoryCgroupTellsWhereTheKernelsMessagesAreHidden) {
  PostMortemFacts facts = KilledRank();
  facts.kernel_unreadable = "Operation not permitted";
  EXPECT_EQ(WhyKilled(facts), "");
  facts.oom_kills = 1;
  EXPECT_EQ(PostMortemJson(facts)["kind"], "out_of_memory");
  EXPECT_EQ(PostMortemJson(facts)["kernel"]["oom_kills"], 1);
  EXPECT_EQ(WhyKilled(facts),
            "the kernel killed 1 process of its memory cgroup because memory ran out there");
  facts.node = 1;
  EXPECT_EQ(WhyKilled(facts), "") << "the rank was on another node";
  facts.node = 0;
  facts.ends[1].signal = SIGSEGV;
  EXPECT_EQ(PostMortemJson(facts)["kind"], "signal");
}

TEST(PostMortem, OfAHangHasItsKindAndWhereTheThreadsAre) {
  PostMortemFacts facts;
  facts.exit_code = kExitTemporary;
  facts.ends = {End(1, kExitTemporary, 0, 0), End(1, 0, SIGKILL, 1), End(0, 0, SIGTERM, 2)};
  facts.ends[0].hang = "never_entered";
  facts.ends[0].error = "rank 1 has not entered collective 3";
  facts.ends[1].stopped = facts.ends[2].stopped = true;
  facts.cause = facts.ends.data();
  facts.ranks.push_back({.rank = 1});
  facts.ranks[0].threads = {{.thread = 9, .name = "gpt", .state = 'S', .waits_in = "futex_wait"}};
  facts.ranks[0].progress = {{.group = "world", .entered = 2, .left = 2, .call = "barrier"}};
  const Json report = PostMortemJson(facts);
  EXPECT_EQ(report["kind"], "hang");
  EXPECT_EQ(report["first"]["hang"], "never_entered");
  EXPECT_THAT(
      PostMortemText(report),
      AllOf(HasSubstr("the job hangs: rank 1 has not entered collective 3"),
            HasSubstr("ranks that were stopped after it: 0\n"), HasSubstr("futex_wait"),
            HasSubstr("entered collective 2, left 2, last barrier"), Not(HasSubstr("it said"))));
}

TEST(PostMortem, WithoutARankThatFailedTheErrorExplainsIt) {
  PostMortemFacts facts;
  facts.error = absl::UnavailableError("node 3 is lost");
  facts.kernel_unreadable = "not permitted";
  const Json report = PostMortemJson(facts);
  EXPECT_EQ(report["kind"], "error");
  EXPECT_EQ(report["what"], "node 3 is lost");
  EXPECT_TRUE(report["first"].is_null());
  EXPECT_EQ(report["kernel"]["readable"], false);
  EXPECT_THAT(PostMortemText(report), HasSubstr("kernel messages are not known: not permitted"));
}

class PostMortemFiles : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_.path()); }
  void Write(const std::string& path, const std::string& text) const {
    const std::string whole = folder_.path() + "/" + path;
    ASSERT_TRUE(MakeDirectories(whole.substr(0, whole.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomic(whole, text).ok());
  }
  PostMortemPlace Place() const {
    return {.run_dir = folder_.path(),
            .log_dir = folder_.path(),
            .started = absl::UnixEpoch() + absl::Seconds(1000)};
  }
  const TempDir folder_ = *TempDir::Create("/tmp");
};

std::string Flight(int attempt, int64_t time_s) {
  Json entries = Json::array();
  for (int sequence = 1; sequence <= 8; ++sequence) {
    entries.push_back({{"collective_seq_id", sequence},
                       {"state", sequence == 8 ? "started" : "completed"},
                       {"dtrain", {{"call", "barrier"}, {"error", nullptr}}}});
  }
  return DumpJson({{"entries", entries},
                   {"dtrain", {{"attempt", attempt}, {"time_ns", time_s * 1'000'000'000}}}});
}

TEST_F(PostMortemFiles, TakesTheLastCollectivesAndMetricsOfThisAttempt) {
  Write("flight/rank-1.json", Flight(2, 1001));
  Write("metrics/rank-1.jsonl",
        R"({"v":1,"ts":1001.5,"attempt":2,"kind":"step","step":8,"m":{"time/step_s":0.25}})"
        "\n"
        R"({"v":1,"ts":1002,"attempt":2,"kind":"event","step":8,"m":{}})"
        "\n{\"v\":1,\"ts\":10");
  RankRemains remains{.rank = 1};
  ReadRemains(Place(), 2, remains);
  ASSERT_EQ(remains.collectives.size(), 5U);
  EXPECT_EQ(remains.collectives[0]["sequence"], 4);
  EXPECT_EQ(remains.collectives[4]["state"], "started");
  EXPECT_EQ(remains.metrics["step"], 8);
  EXPECT_EQ(remains.metrics["time/step_s"], 0.25);
  RankRemains earlier{.rank = 1};
  ReadRemains(Place(), 1, earlier);
  EXPECT_TRUE(earlier.collectives.empty()) << "of another attempt";
  EXPECT_TRUE(earlier.metrics.empty());
}

TEST_F(PostMortemFiles, WhatAnEarlierLaunchLeftOrIsBrokenIsNotTaken) {
  Write("flight/rank-1.json", Flight(0, 900));
  Write("flight/rank-2.json", "{\"entries\":[1");
  Write("metrics/rank-1.jsonl",
        R"({"v":1,"ts":900,"attempt":0,"kind":"step","step":8,"m":{"time/step_s":1}})");
  for (const int rank : {1, 2, 3}) {
    RankRemains remains{.rank = rank};
    ReadRemains(Place(), 0, remains);
    EXPECT_TRUE(remains.collectives.empty());
    EXPECT_TRUE(remains.metrics.empty());
  }
}

TEST_F(PostMortemFiles, AreWrittenForTheRunAndForTheAttempt) {
  PostMortemPlace place = Place();
  place.log_dir = folder_.path() + "/logs";
  ASSERT_TRUE(MakeDirectories(place.log_dir).ok());
  const auto path = WritePostMortem(place, KilledRank());
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(*path, folder_.path() + "/report.json");
  for (const char* const file : {"/report.json", "/logs/report.json"}) {
    const auto report = ParseJson(ReadFile(folder_.path() + file).value_or(""), file);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ((*report)["first"]["rank"], 2);
  }
  EXPECT_THAT(ReadFile(folder_.path() + "/report.txt").value_or(""), HasSubstr("SIGKILL"));
  place.log_dir = folder_.path() + "/nowhere";
  EXPECT_FALSE(WritePostMortem(place, KilledRank()).ok());
}

TEST(StackText, IsTheLastOneThatTheRankLeft) {
  EXPECT_THAT(StackIn({"a line", "stack at signal 12", "old(+0x1) [0x1]", "end of stack", "b",
                       "stack at signal 11", "prog(_ZN6dtrain4mainEi+0x12) [0x55]",
                       "prog(_Zwrong+0x1) [0x56]", "libc.so.6(+0x1) [0x57]", "end of stack"},
                      10),
              ElementsAre("prog(dtrain::main(int)+0x12) [0x55]", "prog(_Zwrong+0x1) [0x56]",
                          "libc.so.6(+0x1) [0x57]"));
  EXPECT_THAT(StackIn({"==1==ERROR: AddressSanitizer", "    #0 0x55 in f a.cc:1",
                       "    #1 0x56 in g", "", "text"},
                      10),
              ElementsAre("#0 0x55 in f a.cc:1", "#1 0x56 in g"));
  EXPECT_THAT(StackIn({"frame #0: f", "frame #1: g", "frame #2: h"}, 2),
              ElementsAre("frame #0: f", "frame #1: g"));
  EXPECT_THAT(StackIn({"loss 3", "# 1", "#hash"}, 10), IsEmpty());
}

}  // namespace
}  // namespace dtrain::launcher::post_mortem_test
