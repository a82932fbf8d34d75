// Groups over RDMA with faults injected at the verbs: every rank gets an error that names the peer
// and says what to do, or goes on over TCP if that is allowed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "comm/transport/rdma/connect_rdma.h"
#include "comm/transport/rdma/fake/fake_verbs.h"
#include "comm/transport/rdma/unmap_watch.h"
#include "comm/transport/rdma/wc_status.h"
#include "tests/comm/group_oracle.h"
#include "tests/comm/rdma/reducing_ranks.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::rdma_group_test {
namespace {

using ::dtrain::comm::rdma_ranks::Options;
using ::dtrain::comm::rdma_ranks::ReduceOnes;
using ::dtrain::comm::rdma_ranks::Text;
using ::dtrain::testing::Cluster;
using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;
using ::testing::HasSubstr;

// Two ranks reduce until an error; rank 1 has `faults`.
std::vector<RankResult> ReduceWith(const FakeVerbsFaults& faults) {
  return RunRanks({.size = 2}, [faults](RankContext& context) -> absl::Status {
    FakeVerbs verbs(context.rank == 1 ? faults : FakeVerbsFaults());
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context, verbs)));
    while (true) {
      DT_RETURN_IF_ERROR(ReduceOnes(*group, 1 << 20));
    }
  });
}

TEST(RdmaGroupTest, SmallRingsAndSeveralQueuePairsGiveTheSameBits) {
  for (const int pairs : {1, 3}) {
    for (const RankResult& result : RunRanks({.size = 3}, [pairs](RankContext& context) {
           const auto run = [&]() -> absl::Status {
             FakeVerbs verbs;
             GroupOptions options = Options(context, verbs);
             options.rdma.slots = 2;
             options.rdma.slot_bytes = 4096;
             options.rdma.queue_pairs = pairs;
             DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
             if (group->transport() != "rdma") {
               return absl::InternalError(group->transport());
             }
             for (const size_t count : {size_t{1}, size_t{1025}, size_t{100003}}) {
               std::string values = oracle::Input(DType::kFloat32, count, context.rank, 9);
               DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), values.size()},
                                                                     ReduceOp::kSum));
               DT_RETURN_IF_ERROR(work.Wait());
               DT_RETURN_IF_ERROR(oracle::Equal(
                   values, oracle::Reduced(DType::kFloat32, count, 3, 9, ReduceOp::kSum),
                   DType::kFloat32, "all_reduce"));
             }
             return group->Barrier(Deadline::Infinite());
           };
           return run();
         })) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

struct LongMessages {
  int pairs = 1;
  bool registered = true;     // Whether the buffers are registered with the group.
  int regions_max_on_1 = -1;  // Limit on rank 1's regions, beyond which it copies.
  bool direct = true;         // Whether direct messages are expected.
};

// Reduces, gathers and sends buffers that are longer than slots by far; an error when a bit is
// wrong, or messages did not go the expected way.
absl::Status MoveLongMessages(const RankContext& context, const LongMessages& how) {
  const auto largest = std::make_shared<std::atomic<uint32_t>>(0);
  FakeVerbs verbs(
      {.regions_max = context.rank == 1 ? how.regions_max_on_1 : -1, .largest_write = largest});
  GroupOptions options = Options(context, verbs);
  options.rdma.slots = 2;
  options.rdma.slot_bytes = 4096;
  options.rdma.queue_pairs = how.pairs;
  options.rdma.direct_bytes_min = 20000;
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
  const size_t bytes = size_t{12} << 20;
  DT_ASSIGN_OR_RETURN(const auto memory, SymmetricBuffer::Create(bytes, "long"));
  std::unique_ptr<Registration> registration;
  if (how.registered) {
    DT_ASSIGN_OR_RETURN(registration, group->Register(memory));
  }
  uint64_t seed = 1;
  for (const size_t count : {size_t{3000}, size_t{20011}, size_t{1000003}, size_t{3000000}}) {
    const std::string input = oracle::Input(DType::kFloat32, count, context.rank, ++seed);
    std::memcpy(memory->data(), input.data(), input.size());
    const Buffer buffer{memory->data(), input.size()};
    DT_ASSIGN_OR_RETURN(Work work, group->AllReduce(buffer, ReduceOp::kSum));
    DT_RETURN_IF_ERROR(work.Wait());
    const std::string sums =
        oracle::Reduced(DType::kFloat32, count, context.size, seed, ReduceOp::kSum);
    DT_RETURN_IF_ERROR(oracle::Equal(std::string(static_cast<char*>(memory->data()), input.size()),
                                     sums, DType::kFloat32, "all_reduce"));
    // A short and a long message each way round the ranks, at the same time.
    std::string next = std::string(input.size(), ' ');
    std::string shorts(8, static_cast<char>('a' + context.rank));
    std::string short_next(8, ' ');
    const int to = (context.rank + 1) % context.size;
    const int from = (context.rank + context.size - 1) % context.size;
    std::memcpy(memory->data(), input.data(), input.size());
    std::vector<Work> works(4);
    DT_ASSIGN_OR_RETURN(works[0], group->Send({shorts.data(), 8, DType::kUInt8}, to));
    DT_ASSIGN_OR_RETURN(works[1], group->Send(buffer, to));
    DT_ASSIGN_OR_RETURN(works[2], group->Receive({short_next.data(), 8, DType::kUInt8}, from));
    DT_ASSIGN_OR_RETURN(works[3], group->Receive({next.data(), next.size()}, from));
    for (const Work& one : works) {
      DT_RETURN_IF_ERROR(one.Wait());
    }
    if (next != oracle::Input(DType::kFloat32, count, from, seed) ||
        short_next != std::string(8, static_cast<char>('a' + from))) {
      return absl::InternalError("received other bytes than were sent");
    }
  }
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  const bool direct = largest->load() > 4096;
  return direct == how.direct
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("largest write ", largest->load()));
}

void ExpectLongMessages(const LongMessages& how, int size = 3) {
  for (const RankResult& result : RunRanks({.size = size}, [how](RankContext& context) {
         return MoveLongMessages(context, how);
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(RdmaGroupTest, LongMessagesOfRegisteredBuffersAreWrittenInPlaceWithTheSameBits) {
  ExpectLongMessages({});
  ExpectLongMessages({}, 2);
}

TEST(RdmaGroupTest, SeveralQueuePairsShareALongMessage) { ExpectLongMessages({.pairs = 3}); }

TEST(RdmaGroupTest, BuffersThatNobodyRegisteredAreReachedToo) {
  if (!UserfaultWatch::Create().ok()) {
    GTEST_SKIP() << "LOUD SKIP: " << UserfaultWatch::Create().status();
  }
  ExpectLongMessages({.registered = false});
  ExpectLongMessages({.pairs = 2, .registered = false}, 2);
}

Buffer PagesAt(void* wanted, size_t bytes, float value) {
  void* const pages =
      mmap(wanted, bytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | (wanted == nullptr ? 0 : MAP_FIXED), -1, 0);
  DT_CHECK(pages != MAP_FAILED);
  std::fill_n(static_cast<float*>(pages), bytes / sizeof(float), value);
  return {pages, bytes};
}

// A next collective is always queued, and between two of them one buffer is unmapped and mapped
// again at the same address: a device that kept its region would write into the old pages.
absl::Status ReduceRemapped(const RankContext& context) {
  constexpr size_t kBytes = size_t{4} << 20;
  const auto registered = std::make_shared<std::atomic<int>>(0);
  FakeVerbs verbs({.registered = registered});
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context, verbs)));
  Buffer moved = PagesAt(nullptr, kBytes, 1);
  const Buffer stays = PagesAt(nullptr, 4 * kBytes, 1);
  int before = 0;
  for (int round = 0; round < 3; ++round) {
    DT_ASSIGN_OR_RETURN(const Work first, group->AllReduce(moved, ReduceOp::kAverage));
    DT_ASSIGN_OR_RETURN(const Work second, group->AllReduce(stays, ReduceOp::kAverage));
    DT_RETURN_IF_ERROR(first.Wait());
    before = registered->load();
    munmap(moved.data, kBytes);
    moved = PagesAt(moved.data, kBytes, 1);
    DT_ASSIGN_OR_RETURN(const Work third, group->AllReduce(moved, ReduceOp::kAverage));
    DT_RETURN_IF_ERROR(third.Wait());
    DT_RETURN_IF_ERROR(second.Wait());
    if (round > 0 && registered->load() <= before) {
      return absl::InternalError("the region of the old pages was used for the new ones");
    }
  }
  DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
  munmap(moved.data, kBytes);
  munmap(stays.data, 4 * kBytes);
  return absl::OkStatus();
}

TEST(RdmaGroupTest, MemoryThatIsMappedAgainBetweenQueuedCallsIsRegisteredAgain) {
  if (!UserfaultWatch::Create().ok()) {
    GTEST_SKIP() << "LOUD SKIP: " << UserfaultWatch::Create().status();
  }
  for (const RankResult& result : RunRanks({.size = 2}, ReduceRemapped)) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// Rank 1 can pin only its staging memory: its messages are copied, and the other ranks still write
// to each other directly.
TEST(RdmaGroupTest, ARankThatCannotPinMoreCopiesAndTheSumsAreTheSame) {
  for (const int pairs : {1, 3}) {
    for (const RankResult& result : RunRanks({.size = 3}, [pairs](RankContext& context) {
           return MoveLongMessages(
               context, {.pairs = pairs, .regions_max_on_1 = 1, .direct = context.rank != 1});
         })) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
}

TEST(RdmaGroupTest, NodesReduceInsideFirstAndThenOverRdma) {
  for (const RankResult& result : RunRanks({.size = 4}, [](RankContext& context) -> absl::Status {
         FakeVerbs verbs;
         GroupOptions options = Options(context, verbs, Network::kAutomatic);
         options.allow_shared_memory = true;
         options.node_id = context.rank < 2 ? "a" : "b";
         DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
         if (group->transport() != "shm+rdma") {
           return absl::InternalError(group->transport());
         }
         DT_RETURN_IF_ERROR(ReduceOnes(*group, 300001));
         return group->Barrier(Deadline::Infinite());
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(RdmaGroupTest, AFailedWriteIsToldInWordsByTheRankAndToThePeer) {
  for (const int status : {kWcRetriesExceeded, kWcRemoteAccess}) {
    const auto results = ReduceWith({.fail_write = 40, .fail_status = status});
    for (const RankResult& result : results) {
      EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable) << result.status;
      EXPECT_THAT(Text(result), HasSubstr(std::string(DescriptionOf(status).name)));
      EXPECT_THAT(Text(result), HasSubstr("rank 0 (node"));
      EXPECT_THAT(Text(result), HasSubstr("bucket 7"));
      EXPECT_THAT(Text(result), HasSubstr("fake0/1"));
    }
    EXPECT_THAT(Text(results[0]), HasSubstr("reported by rank 1"));
  }
}

TEST(RdmaGroupTest, ACutPathIsFoundBeforeTheDeadlineByAWaitThatSendsNothing) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    const auto cut = std::make_shared<std::atomic<bool>>(false);
    FakeVerbs verbs({.cut_now = cut});
    GroupOptions options = Options(context, verbs);
    options.rdma.probe_interval = absl::Milliseconds(100);
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
    // The next write is the probe whether rank 0 can still be reached.
    cut->store(context.rank == 1);
    float value = 0;
    const Buffer one{&value, 4};
    if (context.rank == 0) {
      return context.store->Get("seen", Deadline::After(absl::Seconds(20))).status();
    }
    DT_ASSIGN_OR_RETURN(const Work work, group->Receive(one, 0));
    const absl::Status status = work.Wait();
    DT_RETURN_IF_ERROR(context.store->Set("seen", "", Deadline::Infinite()));
    return status;
  });
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kUnavailable) << results[1].status;
  for (const char* const part : {"rank 0 (node", "IBV_WC_RETRY_EXC_ERR", "UDP port 4791", "DOWN"}) {
    EXPECT_THAT(Text(results[1]), HasSubstr(part));
  }
}

// Rank 1 has a device with the faults that `set` prepares, and waits for rank 0 after `begin` has
// started them. Rank 0 sends when rank 1 has read all events. Gives both results; rank 1's text
// holds its log.
std::vector<RankResult> WaitWithDevice(const std::function<void(FakeVerbsFaults&)>& set,
                                       const std::function<void(FakeVerbsFaults&)>& begin) {
  return RunRanks({.size = 2}, [=](RankContext& context) -> absl::Status {
    const Deadline soon = Deadline::After(absl::Seconds(20));
    FakeVerbsFaults faults;
    set(faults);
    const auto tell = [&] { EXPECT_TRUE(context.store->Set("begun", "", soon).ok()); };
    faults.events_read = tell;
    FakeVerbs verbs(context.rank == 1 ? faults : FakeVerbsFaults());
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context, verbs)));
    float value = 0;
    const Buffer one{&value, 4};
    if (context.rank == 0) {
      DT_RETURN_IF_ERROR(context.store->Get("begun", soon).status());
      DT_ASSIGN_OR_RETURN(const Work work, group->Send(one, 1));
      DT_RETURN_IF_ERROR(work.Wait());
      return group->Barrier(soon);
    }
    begin(faults);
    ::testing::internal::CaptureStderr();
    DT_ASSIGN_OR_RETURN(const Work work, group->Receive(one, 0));
    if (faults.events == nullptr) {
      tell();
    }
    absl::Status status = work.Wait();
    if (status.ok()) {
      status = group->Barrier(soon);
    }
    const std::string logged = ::testing::internal::GetCapturedStderr();
    return absl::Status(status.ok() ? absl::StatusCode::kUnknown : status.code(),
                        absl::StrCat(status.message(), " LOG ", logged));
  });
}

// The kernel then reports an error on the descriptors without end: a rank that only polled again
// would burn its core until its deadline, which is 30 s away.
TEST(RdmaGroupTest, ADeviceThatIsTakenOutEndsTheWaitOnAllRanks) {
  const auto results = WaitWithDevice(
      [](FakeVerbsFaults& faults) {
        faults.taken_out = std::make_shared<std::atomic<bool>>(false);
      },
      [](FakeVerbsFaults& faults) { faults.taken_out->store(true); });
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kUnavailable) << results[1].status;
  EXPECT_THAT(Text(results[1]), HasSubstr("the RDMA device of port fake0/1 is gone"));
  EXPECT_EQ(results[0].status.code(), absl::StatusCode::kUnavailable) << results[0].status;
  EXPECT_THAT(Text(results[0]), HasSubstr("reported by rank 1"));
  EXPECT_LT(results[1].duration, absl::Seconds(25));
}

std::vector<RankResult> WaitWithEvents(const std::vector<DeviceEvent>& events) {
  return WaitWithDevice(
      [](FakeVerbsFaults& faults) { faults.events = std::make_shared<std::vector<DeviceEvent>>(); },
      [events](FakeVerbsFaults& faults) { *faults.events = events; });
}

TEST(RdmaGroupTest, WhatADeviceSaysOfItselfIsLoggedAndAFailedOneEndsTheWait) {
  using Kind = DeviceEvent::Kind;
  const auto lived = WaitWithEvents({{Kind::kPortDown, "IBV_EVENT_PORT_ERR"},
                                     {Kind::kOther, "IBV_EVENT_GID_CHANGE"},
                                     {Kind::kPortUp, "IBV_EVENT_PORT_ACTIVE"}});
  EXPECT_TRUE(lived[0].status.ok()) << lived[0].status;
  EXPECT_EQ(lived[1].status.code(), absl::StatusCode::kUnknown) << lived[1].status;
  EXPECT_THAT(Text(lived[1]),
              HasSubstr("RDMA port fake0/1 went down (IBV_EVENT_PORT_ERR): what is lost is "
                        "repeated for up to 30s"));
  EXPECT_THAT(Text(lived[1]), HasSubstr("says IBV_EVENT_GID_CHANGE"));
  EXPECT_THAT(Text(lived[1]), HasSubstr("RDMA port fake0/1 is up again"));

  const auto failed = WaitWithEvents({{Kind::kDeviceFailed, "IBV_EVENT_DEVICE_FATAL"}});
  EXPECT_EQ(failed[1].status.code(), absl::StatusCode::kUnavailable) << failed[1].status;
  EXPECT_THAT(Text(failed[1]), HasSubstr("port fake0/1 failed (IBV_EVENT_DEVICE_FATAL)"));
  EXPECT_THAT(Text(failed[0]), HasSubstr("reported by rank 1"));
}

// Eleven seconds: longer than the limit that a group over TCP learns, and well within what a device
// repeats.
TEST(RdmaGroupTest, ALinkThatIsDownForAMomentIsRiddenOut) {
  for (const RankResult& result : RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
         const auto down = std::make_shared<std::atomic<bool>>(false);
         FakeVerbs verbs({.down = down});
         DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context, verbs)));
         for (int call = 0; call < 5; ++call) {  // So that the limit is learnt.
           DT_RETURN_IF_ERROR(ReduceOnes(*group, 1000));
         }
         down->store(context.rank == 1);
         std::thread repair([down] {
           absl::SleepFor(absl::Seconds(11));
           down->store(false);
         });
         absl::Status status = ReduceOnes(*group, 1000);
         repair.join();
         if (status.ok()) {
           status = group->Barrier(Deadline::After(absl::Seconds(10)));
         }
         return status;
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_GT(result.duration, absl::Seconds(11));
  }
}

// A container's seccomp profile does this.
absl::Status RefuseUserfaultfd() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, steps};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                 prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0
             ? absl::OkStatus()
             : ErrnoStatus(errno, "seccomp");
}

TEST(RdmaGroupTest, ASystemThatRefusesUserfaultfdIsNamedOnceAndTheSumsAreTheSame) {
  for (const RankResult& result : RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
         DT_RETURN_IF_ERROR(RefuseUserfaultfd());
         ::testing::internal::CaptureStderr();
         FakeVerbs verbs;
         GroupOptions options = Options(context, verbs);
         DT_ASSIGN_OR_RETURN(auto first, CreateHostGroup(context.store, options));
         options.name = "second";
         DT_ASSIGN_OR_RETURN(auto second, CreateHostGroup(context.store, options));
         DT_RETURN_IF_ERROR(ReduceOnes(*first, 1 << 20));
         DT_RETURN_IF_ERROR(ReduceOnes(*second, 1 << 20));
         DT_RETURN_IF_ERROR(second->Barrier(Deadline::Infinite()));
         return absl::UnknownError(::testing::internal::GetCapturedStderr());
       })) {
    EXPECT_EQ(result.status.code(), absl::StatusCode::kUnknown) << result.status;
    const std::string text = Text(result);
    const size_t line = text.find("this system refuses userfaultfd");
    EXPECT_NE(line, std::string::npos) << text;
    EXPECT_EQ(text.find("this system refuses userfaultfd", line + 1), std::string::npos) << text;
    EXPECT_THAT(text, HasSubstr("seccomp"));
  }
}

}  // namespace
}  // namespace dtrain::comm::rdma_group_test
