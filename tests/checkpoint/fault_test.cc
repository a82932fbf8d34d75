// A disk that fails or fills during a save: the save is given up with an error that names it, the
// last good checkpoint stays, no files are left behind, and the next save works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/device_error.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::fault_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

EpochRecord Begin(Storage& storage, int world_size) {
  auto epoch = BeginEpoch(storage, "job", world_size, std::nullopt);
  DT_CHECK_OK(epoch.status());
  return *epoch;
}

void ExpectLoads(Storage& storage, int64_t step, int world_size) {
  auto latest = FindLatest(storage);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ((*latest)->manifest().id.step, step);
  for (int rank = 0; rank < world_size; ++rank) {
    const absl::Status same = FakeState(step, rank, world_size).Compare(**latest);
    EXPECT_TRUE(same.ok()) << same;
  }
}

void FailAtEveryCall(FaultKind kind, int world_size) {
  SetLogLevel(LogLevel::kError);
  int abandoned = 0;
  int64_t calls = 1;
  for (int64_t at = -1; at < calls; ++at) {  // -1: an undisturbed save, which counts the calls.
    SCOPED_TRACE(absl::StrCat("call ", at));
    MemoryFileSystem memory;
    const auto calm = MakePosixStorage(memory);
    const WriterOptions options = OptionsFor(Begin(*calm, world_size));
    SaveOnRanks(*calm, options, world_size, 1);
    FaultyFileSystem faulty(memory, {at < 0 ? FaultPlan{}.at : at, kind});
    const auto failing = MakePosixStorage(faulty);
    const auto reports = SaveOnRanks(*failing, options, world_size, 2);
    calls = std::max(calls, faulty.calls());
    for (const SaveReport& report : reports) {
      ASSERT_EQ(report.outcome, reports[0].outcome);
      ASSERT_NE(report.outcome, SaveOutcome::kFenced);
      if (report.outcome == SaveOutcome::kAbandoned) {
        ASSERT_FALSE(report.status.ok());
        ASSERT_THAT(std::string(report.status.message()), HasSubstr("memory:/"));
      }
    }
    ExpectLoads(*calm, reports[0].durable() ? 2 : 1, world_size);
    if (reports[0].outcome == SaveOutcome::kAbandoned) {
      ++abandoned;
      // Training goes on, and so do saves: here the same step, on a disk that works again.
      for (const SaveReport& report : SaveOnRanks(*calm, options, world_size, 2)) {
        ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
      }
      ExpectLoads(*calm, 2, world_size);
    }
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
  EXPECT_GT(abandoned, 15);
}

TEST(FaultTest, NoSpaceAtAnyCallKeepsTheLastGoodCheckpoint) {
  FailAtEveryCall(FaultKind::kNoSpace, 1);
}
TEST(FaultTest, AnIoErrorAtAnyCallKeepsTheLastGoodCheckpoint) {
  FailAtEveryCall(FaultKind::kIoError, 1);
}
TEST(FaultTest, AShortWriteThenAFullDiskKeepsTheLastGoodCheckpoint) {
  FailAtEveryCall(FaultKind::kShortWrite, 1);
}
TEST(FaultTest, AnErrorOnOneOfTwoRanksGivesUpTheSaveOnBoth) {
  FailAtEveryCall(FaultKind::kIoError, 2);
}

// Each write of a save in turn stores one bit wrong.
struct RotOutcomes {
  int given_up = 0;
  int committed_damaged = 0;
};
RotOutcomes SaveWithEachWriteRotten(bool verify) {
  SetLogLevel(LogLevel::kError);
  RotOutcomes outcomes;
  int64_t calls = 1;
  for (int64_t at = 0; at < calls; ++at) {
    SCOPED_TRACE(absl::StrCat("call ", at));
    MemoryFileSystem memory;
    const auto calm = MakePosixStorage(memory);
    WriterOptions options = OptionsFor(Begin(*calm, 1));
    SaveOnRanks(*calm, options, 1, 1);
    options.verify_after_write = verify;
    FaultyFileSystem faulty(memory, {at, FaultKind::kBitRot});
    const auto rotting = MakePosixStorage(faulty);
    const SaveReport report = SaveOnRanks(*rotting, options, 1, 2)[0];
    calls = std::max(calls, faulty.calls());
    if (report.outcome == SaveOutcome::kAbandoned) {
      EXPECT_THAT(std::string(report.status.message()),
                  AllOf(HasSubstr("is damaged"), HasSubstr("the manifest says")));
      ExpectLoads(*calm, 1, 1);
      ++outcomes.given_up;
      continue;
    }
    EXPECT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
    const auto latest = FindLatest(*calm);
    EXPECT_TRUE(latest.ok()) << latest.status();
    outcomes.committed_damaged += latest.ok() && (*latest)->manifest().id.step == 1 ? 1 : 0;
  }
  return outcomes;
}

TEST(FaultTest, ASaveThatIsVerifiedIsGivenUpWhereTheMediumStoredAnotherBit) {
  const RotOutcomes verified = SaveWithEachWriteRotten(/*verify=*/true);
  EXPECT_GT(verified.given_up, 2);
  EXPECT_LE(verified.committed_damaged, 1) << "the manifest alone, which names its own damage";
  const RotOutcomes unverified = SaveWithEachWriteRotten(/*verify=*/false);
  EXPECT_EQ(unverified.given_up, 0);
  EXPECT_EQ(unverified.committed_damaged, verified.given_up + verified.committed_damaged);
}

TEST(FaultTest, TheMessageNamesTheRankTheFileAndTheError) {
  MemoryFileSystem memory;
  const auto calm = MakePosixStorage(memory);
  WriterOptions options = OptionsFor(Begin(*calm, 2));
  std::vector<SaveReport> reports(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    FaultyFileSystem faulty(memory, {rank == 1 ? 4 : 1'000'000, FaultKind::kNoSpace});
    const auto storage = MakePosixStorage(faulty);
    FakeState state(5, rank, 2);
    Writer writer(*storage, options);
    reports[static_cast<size_t>(rank)] = writer.Save(5, state.source(), exchange);
  });
  for (const SaveReport& report : reports) {
    EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
    EXPECT_EQ(report.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("save of step 5: rank 1: memory:/"));
    EXPECT_THAT(std::string(report.status.message()), HasSubstr("No space left on device"));
  }
  const auto entries = calm->List("");
  ASSERT_TRUE(entries.ok());
  EXPECT_EQ(entries->size(), 1U) << "only epochs/ may be left";
}

TEST(FaultTest, ARankThatNeverSavesEndsTheSaveInTime) {
  MemoryFileSystem memory;
  const auto storage = MakePosixStorage(memory);
  WriterOptions options = OptionsFor(Begin(*storage, 2));
  options.exchange_timeout = absl::Milliseconds(50);
  SaveReport report;
  RunRanks(2, [&](int rank, Exchange& exchange) {
    if (rank == 0) {
      FakeState state(5, 0, 2);
      Writer writer(*storage, options);
      report = writer.Save(5, state.source(), exchange);
    }
  });
  EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("rank 1 did not report"));
}

TEST(FaultTest, RanksThatSaveDifferentStepsAreToldSo) {
  MemoryFileSystem memory;
  const auto storage = MakePosixStorage(memory);
  const WriterOptions options = OptionsFor(Begin(*storage, 2));
  std::vector<SaveReport> reports(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    FakeState state(5, rank, 2);
    Writer writer(*storage, options);
    reports[static_cast<size_t>(rank)] = writer.Save(5 + rank, state.source(), exchange);
  });
  for (const SaveReport& report : reports) {
    EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
    EXPECT_THAT(std::string(report.status.message()), HasSubstr("rank 1 saves step 6"));
  }
}

TEST(FaultTest, TwoRanksThatGiveTheSameTensorAreToldSo) {
  MemoryFileSystem memory;
  const auto storage = MakePosixStorage(memory);
  const WriterOptions options = OptionsFor(Begin(*storage, 2));
  std::vector<SaveReport> reports(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    FakeState state(5, /*rank=*/0, 2);
    Writer writer(*storage, options);
    reports[static_cast<size_t>(rank)] = writer.Save(5, state.source(), exchange);
  });
  EXPECT_EQ(reports[1].outcome, SaveOutcome::kAbandoned);
  EXPECT_THAT(std::string(reports[1].status.message()),
              HasSubstr("layers.0.empty is listed twice"));
}

TEST(FaultTest, AnAttemptThatCannotBeginEndsOnAllRanksForNow) {
  MemoryFileSystem memory;
  FaultyFileSystem faulty(memory, {0, FaultKind::kIoError});
  const auto storage = MakePosixStorage(faulty);
  std::vector<absl::Status> statuses(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    statuses[static_cast<size_t>(rank)] =
        BeginAttempt(*storage, exchange, {.job = "job", .fresh = true, .known_save = nullptr},
                     absl::Minutes(1))
            .status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(ExitCodeFor(status), kExitTemporary) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Input/output error"));
  }
  EXPECT_THAT(std::string(statuses[1].message()),
              HasSubstr("rank 0 could not begin the attempt: "));
}

// The second broadcast of a save, which is the verdict, does not reach this rank.
class DeafExchange final : public Exchange {
 public:
  explicit DeafExchange(Exchange& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine,
                                                  Deadline deadline) override {
    return inner_.Gather(mine, deadline);
  }
  absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline deadline) override {
    // It goes on only when rank 0 has decided, or it would remove folders that rank 0 still fills.
    absl::StatusOr<std::string> heard = inner_.Broadcast(text, deadline);
    return ++broadcasts_ == 2 ? absl::UnavailableError("lost on purpose") : std::move(heard);
  }

 private:
  Exchange& inner_;
  int broadcasts_ = 0;
};

TEST(FaultTest, ARankThatMissesTheVerdictLeavesItsFilesToTheCommit) {
  MemoryFileSystem memory;
  const auto storage = MakePosixStorage(memory);
  const WriterOptions options = OptionsFor(Begin(*storage, 2));
  std::vector<SaveReport> reports(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    FakeState state(5, rank, 2);
    Writer writer(*storage, options);
    DeafExchange deaf(exchange);
    reports[static_cast<size_t>(rank)] =
        writer.Save(5, state.source(), rank == 1 ? static_cast<Exchange&>(deaf) : exchange);
  });
  EXPECT_EQ(reports[0].outcome, SaveOutcome::kCommitted) << reports[0].status;
  EXPECT_EQ(reports[1].outcome, SaveOutcome::kUnknown) << reports[1].status;
  EXPECT_FALSE(reports[1].durable());
  EXPECT_THAT(std::string(reports[1].status.message()), HasSubstr("was not heard"));
  ExpectLoads(*storage, 5, 2);
}

TEST(FaultTest, ARankThatFailedItselfKnowsWithoutTheVerdictThatNothingWasCommitted) {
  MemoryFileSystem memory;
  const auto calm = MakePosixStorage(memory);
  const WriterOptions options = OptionsFor(Begin(*calm, 2));
  std::vector<SaveReport> reports(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    FaultyFileSystem faulty(memory, {rank == 1 ? 4 : 1'000'000, FaultKind::kIoError});
    const auto storage = MakePosixStorage(faulty);
    FakeState state(5, rank, 2);
    Writer writer(*storage, options);
    DeafExchange deaf(exchange);
    reports[static_cast<size_t>(rank)] =
        writer.Save(5, state.source(), rank == 1 ? static_cast<Exchange&>(deaf) : exchange);
  });
  for (const SaveReport& report : reports) {
    EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned) << report.status;
    EXPECT_TRUE(IsDeviceError(report.status)) << "each rank knows that a disk failed, and no peer";
  }
  EXPECT_THAT(std::string(reports[0].status.message()), HasSubstr("rank 1: "));
  EXPECT_EQ(calm->List("")->size(), 1U) << "only epochs/ may be left";
}

// A storage that commits but loses the reply. `then` says how it answers later reads; with
// kHoldsAnother a second process of this epoch has committed.
class LostReplyStorage final : public ForwardingStorage {
 public:
  enum class Then { kAnswers, kCannotRead, kCannotSync, kHoldsAnother };
  LostReplyStorage(Storage& inner, Then then) : ForwardingStorage(inner), then_(then) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    if (lost_ && then_ == Then::kCannotRead) {
      return absl::UnavailableError("no answer");
    }
    return inner_.OpenFile(path);
  }
  absl::Status Publish(const std::string& path, absl::string_view content) override {
    const absl::Status done = inner_.Publish(
        path, then_ == Then::kHoldsAnother ? absl::StrCat(content, "\n") : std::string(content));
    lost_ = true;
    return done.ok() ? absl::UnavailableError("the reply was lost") : done;
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return lost_ && then_ == Then::kCannotSync ? absl::UnavailableError("no answer")
                                               : inner_.SyncDirectory(path);
  }

 private:
  const Then then_;
  bool lost_ = false;
};

TEST(FaultTest, ACommitWhoseReplyIsLostIsKeptWhateverCanBeLearntOfIt) {
  using Then = LostReplyStorage::Then;
  for (const auto& [then, outcome] : {std::pair(Then::kAnswers, SaveOutcome::kCommitted),
                                      std::pair(Then::kCannotRead, SaveOutcome::kUnknown),
                                      std::pair(Then::kCannotSync, SaveOutcome::kUnknown)}) {
    MemoryFileSystem memory;
    const auto storage = MakePosixStorage(memory);
    const WriterOptions options = OptionsFor(Begin(*storage, 2));
    LostReplyStorage losing(*storage, then);
    for (const SaveReport& report : SaveOnRanks(losing, options, 2, 5)) {
      EXPECT_EQ(report.outcome, outcome) << report.status;
      EXPECT_EQ(report.status.ok(), outcome == SaveOutcome::kCommitted);
      if (outcome == SaveOutcome::kUnknown) {  // On the rank that was told so too.
        EXPECT_THAT(std::string(report.status.message()), HasSubstr("the reply was lost"));
      }
    }
    ExpectLoads(*storage, 5, 2);
  }
}

TEST(FaultTest, ACommitOfASecondProcessOfThisEpochFencesThisOne) {
  MemoryFileSystem memory;
  const auto storage = MakePosixStorage(memory);
  const WriterOptions options = OptionsFor(Begin(*storage, 2));
  LostReplyStorage losing(*storage, LostReplyStorage::Then::kHoldsAnother);
  for (const SaveReport& report : SaveOnRanks(losing, options, 2, 5)) {
    EXPECT_EQ(report.outcome, SaveOutcome::kFenced) << report.status;
    EXPECT_FALSE(report.durable());
    EXPECT_EQ(report.status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("was written by another process of epoch 1; this one must end"));
  }
}

// A small file system that really becomes full. Needs the right to mount, as root in CI has.
class TinyDisk {
 public:
  explicit TinyDisk(size_t bytes) {
    mounted_ = mount("tmpfs", folder_.path().c_str(), "tmpfs", MS_NOSUID | MS_NODEV,
                     absl::StrCat("size=", bytes).c_str()) == 0;
  }
  TinyDisk(const TinyDisk&) = delete;
  TinyDisk& operator=(const TinyDisk&) = delete;
  ~TinyDisk() {
    if (mounted_) {
      umount2(folder_.path().c_str(), MNT_DETACH);
    }
  }
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }
  uint64_t free_bytes() const {
    struct statvfs room {};
    DT_CHECK(statvfs(path().c_str(), &room) == 0);
    return room.f_bfree * room.f_frsize;
  }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
};

TEST(FaultTest, ARealDiskThatFillsAtManyPlacesKeepsTheLastGoodCheckpoint) {
  SetLogLevel(LogLevel::kError);
  constexpr size_t kScale = 16;  // A checkpoint has about 90 kB.
  constexpr size_t kPage = 4096;
  int full = 0;
  for (size_t pages = 0; pages < 36; pages += 2) {
    SCOPED_TRACE(absl::StrCat(pages, " pages left"));
    const TinyDisk disk(128 * kPage);
    if (!disk.mounted()) {
      GTEST_SKIP() << "mounting a tmpfs is not permitted here: run as root to test a full disk";
    }
    auto storage = OpenPosixStorage(disk.path() + "/checkpoints");
    ASSERT_TRUE(storage.ok()) << storage.status();
    const WriterOptions options = OptionsFor(Begin(**storage, 1));
    ASSERT_EQ(SaveOnRanks(**storage, options, 1, 1, kScale)[0].outcome, SaveOutcome::kCommitted);
    // A file fills all remaining space except `pages`.
    auto again = OpenRealFileSystem(disk.path());
    ASSERT_TRUE(again.ok());
    const auto handle = (*again)->Create("probe", 0600);
    ASSERT_TRUE(handle.ok());
    size_t room = 0;
    while ((*again)->Allocate(*handle, (room + 1) * kPage).ok()) {
      ++room;
    }
    ASSERT_TRUE((*again)->Close(*handle).ok());
    ASSERT_TRUE((*again)->Unlink("probe").ok());
    const auto fill = (*again)->Create("ballast", 0600);
    ASSERT_TRUE(fill.ok());
    ASSERT_TRUE((*again)->Allocate(*fill, room > pages ? (room - pages) * kPage : 0).ok());
    const SaveReport report = SaveOnRanks(**storage, options, 1, 2, kScale)[0];
    if (report.outcome == SaveOutcome::kAbandoned) {
      ++full;
      EXPECT_EQ(report.status.code(), absl::StatusCode::kResourceExhausted) << report.status;
      EXPECT_THAT(std::string(report.status.message()), HasSubstr(disk.path()));
      EXPECT_THAT(std::string(report.status.message()), HasSubstr("step-000000000002.e1"));
    }
    ASSERT_TRUE((*again)->Close(*fill).ok());
    auto latest = FindLatest(**storage);
    ASSERT_TRUE(latest.ok()) << latest.status();
    const int64_t step = report.durable() ? 2 : 1;
    EXPECT_EQ((*latest)->manifest().id.step, step);
    const absl::Status same = FakeState(step, 0, 1, kScale).Compare(**latest);
    EXPECT_TRUE(same.ok()) << same;
    ASSERT_TRUE((*again)->Unlink("ballast").ok());
    EXPECT_EQ(SaveOnRanks(**storage, options, 1, 3, kScale)[0].outcome, SaveOutcome::kCommitted);
  }
  EXPECT_GT(full, 5);
}

// A save is killed at each of its calls. The next attempt must remove the files that it left, and
// the old checkpoint that it could no longer remove, before it writes, because there is no room for
// both.
TEST(FaultTest, AKilledSaveDoesNotStopTheNextAttemptsSavesOnANearlyFullDisk) {
  SetLogLevel(LogLevel::kError);
  constexpr size_t kScale = 16;  // A checkpoint has about 90 kB.
  constexpr int kOld = 2;
  int64_t calls = 1;
  for (int64_t at = -1; at < calls; ++at) {  // -1: an undisturbed save, which counts the calls.
    SCOPED_TRACE(absl::StrCat("call ", at));
    const TinyDisk disk(1 << 20);
    if (!disk.mounted()) {
      GTEST_SKIP() << "mounting a tmpfs is not permitted here: run as root to test a full disk";
    }
    auto files = OpenRealFileSystem(disk.path());
    ASSERT_TRUE(files.ok());
    const auto calm = MakePosixStorage(**files);
    WriterOptions options = OptionsFor(Begin(*calm, 1));
    options.keep.newest = kOld;
    const uint64_t before = disk.free_bytes();
    for (int64_t step = 1; step <= kOld; ++step) {
      ASSERT_TRUE(SaveOnRanks(*calm, options, 1, step, kScale)[0].durable());
    }
    // Room for one more checkpoint, but not for two.
    const uint64_t one = (before - disk.free_bytes()) / kOld;
    const auto ballast = (*files)->Create("ballast", 0600);
    ASSERT_TRUE(ballast.ok());
    ASSERT_TRUE((*files)->Allocate(*ballast, disk.free_bytes() - one * 3 / 2).ok());
    FaultyFileSystem faulty(**files, {at < 0 ? FaultPlan{}.at : at, FaultKind::kStop});
    SaveOnRanks(*MakePosixStorage(faulty), options, 1, kOld + 1, kScale);
    calls = std::max(calls, faulty.calls());
    auto latest = FindLatest(*calm);
    ASSERT_TRUE(latest.ok()) << latest.status();
    auto next = BeginEpoch(*calm, "job", 1, (*latest)->manifest().id);
    ASSERT_TRUE(next.ok()) << next.status();
    options.epoch = *next;
    for (int64_t step = kOld + 2; step <= kOld + 3; ++step) {
      const SaveReport report = SaveOnRanks(*calm, options, 1, step, kScale)[0];
      ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
    }
    ASSERT_TRUE((*files)->Close(*ballast).ok());
  }
  EXPECT_GT(calls, 30);
}

}  // namespace
}  // namespace dtrain::checkpoint::fault_test
