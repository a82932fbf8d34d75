// Ranks that die, stop, lag, disagree or give up: every other rank soon gets an error that names
// the cause, and nothing is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "tests/comm/group_rounds.h"
#include "tests/comm/rdma_for_tests.h"
#include "tests/comm/shared_segments.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::group_faults_test {
namespace {

using ::dtrain::testing::Cluster;
using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankKind;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

// Less than the 30 s that a collective may take. A busy test machine is slow.
constexpr absl::Duration kSoon = absl::Seconds(25);

enum class Over { kShm, kTcp, kTcpRing, kRdma, kTls };

GroupOptions OptionsOver(Over over, const RankContext& context) {
  GroupOptions options = context.group_options();
  options.allow_shared_memory = over == Over::kShm;
  options.algorithm = over == Over::kTcpRing ? Algorithm::kRing : Algorithm::kAutomatic;
  options.tcp_tls = over == Over::kTls;
  if (over == Over::kRdma) {
    UseRdma(options);
  }
  return options;
}

// The word for a rank's machine in messages.
std::string HostWord(Over over) {
  utsname host{};
  uname(&host);
  return over == Over::kShm ? absl::StrCat("host ", host.nodename) : "node ";
}

class GroupFaultsTest : public ::testing::TestWithParam<Over> {
 protected:
  static GroupOptions Options(const RankContext& context) {
    return OptionsOver(GetParam(), context);
  }
};
std::string NameOf(Over over) {
  const char* const names[] = {"Shm", "Tcp", "TcpRing", "Rdma", "Tls"};
  return names[static_cast<int>(over)];
}
INSTANTIATE_TEST_SUITE_P(Transports, GroupFaultsTest,
                         ::testing::Values(Over::kShm, Over::kTcp, Over::kTcpRing, Over::kRdma,
                                           Over::kTls),
                         [](const auto& tested) { return NameOf(tested.param); });

// All ranks meet; then the last one waits to be killed or stopped, and the others reduce `floats`
// elements.
absl::Status ReduceWithoutTheLast(RankContext& context, const GroupOptions& options,
                                  size_t floats) {
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  group->SetStep(41);
  if (context.rank == context.size - 1) {
    DT_RETURN_IF_ERROR(context.Announce("ready"));
    while (true) {
      pause();
    }
  }
  std::vector<float> values(floats, 1.0F);
  DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), floats * 4}, ReduceOp::kSum,
                                                        {.name = "bucket 7"}));
  DT_RETURN_IF_ERROR(context.Announce(absl::StrCat("reducing", context.rank)));
  const absl::Status status = work.Wait();
  DT_RETURN_IF_ERROR(context.Announce("reported"));
  auto after = group->AllReduce({values.data(), 4}, ReduceOp::kSum);
  if (!after.ok() || after->Wait().code() != absl::StatusCode::kAborted) {
    return absl::InternalError("a call on a broken group was not aborted");
  }
  return status;
}

TEST_P(GroupFaultsTest, AKilledRankIsNamedSoon) {
  for (const size_t floats : {size_t{10}, size_t{4} << 20}) {
    auto cluster = Cluster::Start({.size = 3}, [floats](RankContext& context) {
      return ReduceWithoutTheLast(context, Options(context), floats);
    });
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    for (const char* const key : {"ready", "reducing0", "reducing1"}) {
      ASSERT_TRUE((*cluster)->Await(key).ok());
    }
    const pid_t killed = (*cluster)->pid(2);
    (*cluster)->Kill(2);
    const absl::Time start = absl::Now();
    const std::vector<RankResult> results = (*cluster)->Join();
    EXPECT_LT(absl::Now() - start, kSoon);
    EXPECT_EQ(results[2].signal, SIGKILL);
    for (int rank = 0; rank < 2; ++rank) {
      const absl::Status& status = results[static_cast<size_t>(rank)].status;
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2"));
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("pid ", killed)));
      EXPECT_THAT(std::string(status.message()), HasSubstr("bucket 7"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("in step 41"));
    }
  }
}

TEST_P(GroupFaultsTest, ARankKilledAmongReductionsIsNamedByAll) {
  auto cluster = Cluster::Start({.size = 4}, [](RankContext& context) {
    return ReduceUntilAnError(context, Options(context), 1 << 20);
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(AwaitRounds(**cluster, 4).ok());
  const std::string killed = absl::StrCat("pid ", (*cluster)->pid(2));
  (*cluster)->Kill(2);
  const absl::Time start = absl::Now();
  const std::vector<RankResult> results = (*cluster)->Join();
  EXPECT_LT(absl::Now() - start, kSoon);
  for (const int rank : {0, 1, 3}) {
    const absl::Status& status = results[static_cast<size_t>(rank)].status;
    EXPECT_TRUE(EndedByAKill(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(killed));
  }
}

TEST_P(GroupFaultsTest, AStoppedRankIsNamedAtTheTimeout) {
  auto cluster = Cluster::Start({.size = 2}, [](RankContext& context) {
    GroupOptions options = Options(context);
    options.timeout = absl::Seconds(1);
    return ReduceWithoutTheLast(context, options, 10);
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE((*cluster)->Await("ready").ok());
  (*cluster)->Stop(1);
  ASSERT_TRUE((*cluster)->Await("reported").ok());
  (*cluster)->Kill(1);  // Otherwise Join would wait for it.
  const std::vector<RankResult> results = (*cluster)->Join();
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kDeadlineExceeded) << results[0].status;
  EXPECT_LT(results[0].duration, kSoon);
  for (const std::string& part :
       {std::string("rank 1 (") + HostWord(GetParam()), std::string("bucket 7"),
        std::string("step 41"), std::string("collective 2"),
        std::string("not finished after 1s")}) {
    EXPECT_THAT(std::string(results[0].status.message()), HasSubstr(part));
  }
}

TEST_P(GroupFaultsTest, AfterTheFirstCallsAStoppedRankIsNamedAtTheLearntTimeout) {
  auto cluster =
      Cluster::Start({.size = 2, .time_bound = absl::Seconds(100)}, [](RankContext& context) {
        GroupOptions options = Options(context);
        options.timeout = absl::Minutes(5);
        options.timeout_min = absl::Seconds(1);
        return ReduceUntilAnError(context, options, 1000, /*announce_at=*/20);
      });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE(AwaitRounds(**cluster, 2).ok());
  (*cluster)->Stop(1);
  ASSERT_TRUE((*cluster)->Await("ended0").ok()) << "after 5 minutes it would be too late";
  (*cluster)->Kill(1);  // Otherwise Join would wait for it.
  const absl::Status status = (*cluster)->Join()[0].status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 ("));
}

TEST_P(GroupFaultsTest, ASlowRankDelaysButBreaksNothing) {
  auto cluster = Cluster::Start({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context)));
    DT_RETURN_IF_ERROR(context.Announce("ready"));
    std::vector<float> values(100000, 1.0F);
    for (int i = 0; i < 20; ++i) {
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllReduce({values.data(), 400000}, ReduceOp::kAverage));
      DT_RETURN_IF_ERROR(work.Wait());
    }
    return values[99999] == 1.0F ? absl::OkStatus() : absl::InternalError("wrong sum");
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE((*cluster)->Await("ready").ok());
  (*cluster)->Slow(1, 4);
  for (const RankResult& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// The call that a rank makes.
using CallOf = std::function<absl::StatusOr<Work>(Group&, int rank, std::vector<float>&)>;
std::vector<RankResult> Disagree(Over over, const CallOf& call) {
  return RunRanks({.size = 3}, [&](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, OptionsOver(over, context)));
    std::vector<float> values(300000);
    DT_ASSIGN_OR_RETURN(const Work work, call(*group, context.rank, values));
    return work.Wait();
  });
}

TEST_P(GroupFaultsTest, ADifferentSizeIsReportedOnEveryRank) {
  for (const size_t floats : {size_t{100}, size_t{200000}}) {
    for (const RankResult& result :
         Disagree(GetParam(), [&](Group&group, int rank, std::vector<float>&values) {
           const size_t bytes = (floats + (rank == 1 ? 1 : 0)) * 4;
           return group.AllReduce({values.data(), bytes}, ReduceOp::kSum, {.name = "bucket 3"});
         })) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
      const std::string text(result.status.message());
      EXPECT_THAT(text, HasSubstr(absl::StrFormat("rank 1 called all_reduce \"bucket 3\" sum fp32 "
                                                  "%d bytes",
                                                  (floats + 1) * 4)));
      EXPECT_THAT(text, HasSubstr(absl::StrFormat("fp32 %d bytes", floats * 4)));
    }
  }
}

TEST_P(GroupFaultsTest, ADifferentTypeIsReportedOnEveryRank) {
  for (const RankResult& result :
       Disagree(GetParam(), [](Group&group, int rank, std::vector<float>&values) {
         return group.AllReduce({values.data(), 64, rank == 2 ? DType::kBFloat16 : DType::kFloat32},
                                ReduceOp::kSum);
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("rank 2 called all_reduce sum bf16"));
  }
}

TEST_P(GroupFaultsTest, ADifferentOrderIsReportedOnEveryRank) {
  for (const RankResult& result :
       Disagree(GetParam(), [](Group&group, int rank, std::vector<float>&values) {
         return rank == 0 ? group.Broadcast({values.data(), 64}, 0, {.name = "weights"})
                          : group.AllReduce({values.data(), 64}, ReduceOp::kSum, {.name = "norm"});
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("rank 0 called broadcast \"weights\""));
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("called all_reduce \"norm\""));
  }
}

// Two buckets of one size would be summed into each other.
TEST_P(GroupFaultsTest, ADifferentNameAloneIsReportedOnEveryRank) {
  for (const RankResult& result :
       Disagree(GetParam(), [](Group&group, int rank, std::vector<float>&values) {
         return group.AllReduce({values.data(), 64}, ReduceOp::kSum,
                                {.name = rank == 1 ? "bucket 4" : "bucket 3"});
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kFailedPrecondition) << result.status;
    EXPECT_THAT(std::string(result.status.message()),
                HasSubstr("rank 1 called all_reduce \"bucket 4\""));
  }
}

TEST_P(GroupFaultsTest, AMessageOfAnotherSizeIsReported) {
  const auto results = Disagree(GetParam(), [](Group& group, int rank, std::vector<float>& values) {
    return rank == 0   ? group.Send({values.data(), 64}, 1)
           : rank == 1 ? group.Receive({values.data(), 128}, 0)
                       : absl::StatusOr<Work>(Work());
  });
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kInvalidArgument) << results[1].status;
  EXPECT_THAT(std::string(results[1].status.message()), HasSubstr("64 bytes"));
  EXPECT_THAT(std::string(results[1].status.message()), HasSubstr("128 bytes"));
}

TEST_P(GroupFaultsTest, AbortWakesEverybodyWithTheReason) {
  const auto results = RunRanks({.size = 3}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context)));
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    std::vector<float> values(100, 1.0F);
    if (context.rank == 2) {
      group->Abort("user pressed stop");
      return group->Barrier(Deadline::Infinite());
    }
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), 400}, ReduceOp::kSum));
    return work.Wait();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kAborted) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("user pressed stop"));
    EXPECT_LT(result.duration, kSoon);
  }
}

TEST_P(GroupFaultsTest, AbortFromAnotherThreadEndsAWait) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context)));
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    if (context.rank == 1) {  // Rank 1 stays, so that the wait does not end because it left.
      DT_RETURN_IF_ERROR(context.store->Set("in", "", Deadline::Infinite()));
      return context.store->Get("done", Deadline::After(kSoon)).status();
    }
    // Rank 1 may still be in the barrier that this rank has left, so wait until it is through.
    DT_RETURN_IF_ERROR(context.store->Get("in", Deadline::After(kSoon)).status());
    float value = 1;
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({&value, 4}, ReduceOp::kSum));
    std::thread other([&] { group->Abort("from outside"); });
    const absl::Status status = work.Wait();
    other.join();
    DT_RETURN_IF_ERROR(context.store->Set("done", "", Deadline::Infinite()));
    return status;
  });
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kAborted) << results[0].status;
  EXPECT_TRUE(results[1].status.ok()) << results[1].status;
}

TEST_P(GroupFaultsTest, AWaitThatRunsOutOfTimeMayBeRepeated) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context)));
    float value = 1;
    if (context.rank == 1) {
      DT_RETURN_IF_ERROR(context.store->Get("go", Deadline::After(kSoon)).status());
    }
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({&value, 4}, ReduceOp::kSum));
    if (context.rank == 0) {
      if (work.Wait(Deadline::After(absl::Milliseconds(20))).code() !=
          absl::StatusCode::kDeadlineExceeded) {
        return absl::InternalError("a wait for an absent peer ended early");
      }
      DT_RETURN_IF_ERROR(context.store->Set("go", "", Deadline::Infinite()));
    }
    DT_RETURN_IF_ERROR(work.Wait());
    return value == 2 ? group->Barrier(Deadline::Infinite()) : absl::InternalError("wrong sum");
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST_P(GroupFaultsTest, ARankThatNeverComesIsNamedByCreate) {
  const auto results = RunRanks({.size = 3}, [](RankContext& context) -> absl::Status {
    GroupOptions options = Options(context);
    options.connect_timeout = absl::Seconds(1);
    if (context.rank == 1) {
      return absl::OkStatus();
    }
    return CreateHostGroup(context.store, options).status();
  });
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kDeadlineExceeded) << results[0].status;
  // Rank 2 may be late as well.
  EXPECT_THAT(std::string(results[0].status.message()), ::testing::ContainsRegex("ranks? 1"));
}

TEST(GroupOptionsTest, RanksThatWouldSumInAnotherOrderAreRefusedByCreate) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    GroupOptions options = context.group_options();
    options.deterministic = context.rank == 1;
    return CreateHostGroup(context.store, options).status();
  });
  for (const RankResult& result : results) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInvalidArgument) << result.status;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("automatic deterministic"));
  }
}

TEST_P(GroupFaultsTest, TheFlightRecordHoldsTheLastCallsAndTheFailure) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context)));
    for (int i = 0; i < 1100; ++i) {
      DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    }
    // Wait until both are through, because the abort would end the other's last barrier.
    DT_RETURN_IF_ERROR(
        context.store->Set(absl::StrCat("through", context.rank), "", Deadline::Infinite()));
    DT_RETURN_IF_ERROR(
        context.store->Get(absl::StrCat("through", 1 - context.rank), Deadline::After(kSoon))
            .status());
    group->Abort("look");
    if (group->Barrier(Deadline::Infinite()).code() != absl::StatusCode::kAborted) {
      return absl::InternalError("a barrier after an abort");
    }
    DT_ASSIGN_OR_RETURN(const Json record, ParseJson(group->FlightRecord(), "record"));
    const Json& calls = record["entries"];
    if (calls.size() != 1000 || calls.back()["collective_seq_id"] != 1101 ||
        calls.back()["state"] != "scheduled" || calls.back()["dtrain"]["error"].is_null() ||
        calls[998]["state"] != "completed" || calls.front()["dtrain"]["call"] != "barrier") {
      return absl::InternalError(record.dump());
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
}

TEST(GroupLeavesNothingTest, AfterAKill) {
  // A unique name, because other tests run on this host.
  const std::string name = absl::StrCat("left-behind-", getpid());
  auto cluster = Cluster::Start({.size = 2}, [&name](RankContext& context) -> absl::Status {
    GroupOptions options = context.group_options();
    options.name = name;
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(1 << 20, name));
    return ReduceWithoutTheLast(context, options, 1 << 20);
  });
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_TRUE((*cluster)->Await("ready").ok());
  EXPECT_GE(HoldersOfSegments(name).size(), 4U) << "or nothing could be found left behind";
  (*cluster)->Kill(1);
  (*cluster)->Join();
  EXPECT_THAT(HoldersOfSegments(name), ::testing::IsEmpty());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

// Two network namespaces joined by a cable, one for each rank.
class TwoHosts {
 public:
  TwoHosts() {
    const std::string id = absl::StrCat(getpid());
    for (int i = 0; i < 2; ++i) {
      names_.push_back(absl::StrCat("dtt", id, i));
    }
    made_ = Ip("netns add " + names_[0]) && Ip("netns add " + names_[1]) &&
            Ip(absl::StrCat("link add dtv0 netns ", names_[0], " type veth peer name dtv1 netns ",
                            names_[1]));
    for (int i = 0; i < 2 && made_; ++i) {
      made_ = Ip(absl::StrFormat("-n %s addr add 10.213.7.%d/24 dev dtv%d", names_[i], i + 1, i)) &&
              Ip(absl::StrFormat("-n %s link set dtv%d up", names_[i], i));
    }
  }
  ~TwoHosts() {
    for (const std::string& name : names_) {
      Ip("netns del " + name);
    }
  }
  bool made() const { return made_; }
  // Moves the calling process into namespace `index`.
  absl::Status Enter(int index) const {
    const std::string path = "/var/run/netns/" + names_[static_cast<size_t>(index)];
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return setns(fd.get(), CLONE_NEWNET) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path);
  }

 private:
  static bool Ip(const std::string& arguments) {
    return system(("ip " + arguments + " 2>/dev/null").c_str()) == 0;
  }
  std::vector<std::string> names_;
  bool made_ = false;
};

TEST(GroupBetweenHostsTest, ReducesOverAVirtualCable) {
  const TwoHosts hosts;
  if (!hosts.made()) {
    GTEST_SKIP() << "NOT TESTED: this user may not create network namespaces (needs root)";
  }
  const auto results = RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
    DT_RETURN_IF_ERROR(hosts.Enter(context.rank));
    GroupOptions options = context.group_options();
    options.node_id = absl::StrCat("host", context.rank);
    options.host_address = absl::StrCat("10.213.7.", context.rank + 1);
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    if (group->transport() != "tcp") {
      return absl::InternalError(group->transport());
    }
    std::vector<float> values(1 << 20, static_cast<float>(context.rank + 1));
    DT_ASSIGN_OR_RETURN(const Work work,
                        group->AllReduce({values.data(), values.size() * 4}, ReduceOp::kSum));
    DT_RETURN_IF_ERROR(work.Wait());
    DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
    return values.front() == 3 && values.back() == 3 ? absl::OkStatus()
                                                     : absl::InternalError("wrong sum");
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::comm::group_faults_test
