// A save is cut at every one of its system calls, those by which it removes old checkpoints too;
// afterwards either the old checkpoint or the new one loads, bit for bit, and the next attempt
// works.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::crash_test {
namespace {

constexpr int64_t kOldStep = 1;
constexpr int64_t kNewStep = 2;

EpochRecord Begin(Storage& storage, int world_size, std::optional<StepId> from) {
  auto epoch = BeginEpoch(storage, "job", world_size, from);
  DT_CHECK_OK(epoch.status());
  return *epoch;
}

// The step that loads, after checking that every rank's bits are right; -1 when nothing loads.
int64_t LoadedStep(Storage& storage, int world_size) {
  auto latest = FindLatest(storage);
  if (!latest.ok()) {
    return -1;
  }
  const int64_t step = (*latest)->manifest().id.step;
  for (int rank = 0; rank < world_size; ++rank) {
    const absl::Status same = FakeState(step, rank, world_size).Compare(**latest);
    EXPECT_TRUE(same.ok()) << "step " << step << " rank " << rank << ": " << same;
  }
  return step;
}

// Starts again after a crash: one more save, after which only whole checkpoints are left.
void ExpectNextAttemptWorks(FileSystem& files, int world_size) {
  const auto storage = MakePosixStorage(files);
  auto latest = FindLatest(*storage);
  ASSERT_TRUE(latest.ok()) << latest.status();
  const EpochRecord epoch = Begin(*storage, world_size, (*latest)->manifest().id);
  for (const SaveReport& report : SaveOnRanks(*storage, OptionsFor(epoch), world_size, 3)) {
    ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
  }
  EXPECT_EQ(LoadedStep(*storage, world_size), 3);
  const auto commits = ListCheckpoints(*storage);
  const auto entries = storage->List("");
  ASSERT_TRUE(commits.ok() && entries.ok());
  size_t folders = 0;
  for (const Storage::Entry& entry : *entries) {
    folders += StepId::FromDirectoryName(entry.name) ? 1 : 0;
    EXPECT_NE(entry.name.substr(0, 5), kTemporaryPrefix);
  }
  EXPECT_EQ(folders, commits->size()) << "a crashed save left its folder behind";
}

struct CrashCase {
  int world_size = 1;
  FaultKind kind = FaultKind::kStop;
  bool power_cut = false;  // False: only the process dies, and written data stay.
};

// Calls of one undisturbed save.
int64_t CountCalls(int world_size) {
  MemoryFileSystem memory;
  FaultyFileSystem counted(memory, FaultPlan{});
  const auto storage = MakePosixStorage(counted);
  const WriterOptions options = OptionsFor(Begin(*storage, world_size, std::nullopt));
  SaveOnRanks(*storage, options, world_size, kOldStep);
  const int64_t before = counted.calls();
  SaveOnRanks(*storage, options, world_size, kNewStep);
  return counted.calls() - before;
}

void CrashAtEveryCall(const CrashCase& test) {
  SetLogLevel(LogLevel::kError);
  const int64_t calls = CountCalls(test.world_size);
  EXPECT_GT(calls, 30);
  int loaded_old = 0;
  int loaded_new = 0;
  for (int64_t at = 0; at < calls; ++at) {
    for (uint64_t seed = 0; seed < (test.power_cut ? 6U : 1U); ++seed) {
      SCOPED_TRACE(absl::StrCat("call ", at, " of ", calls, ", seed ", seed));
      MemoryFileSystem memory;
      const auto calm = MakePosixStorage(memory);
      const WriterOptions options = OptionsFor(Begin(*calm, test.world_size, std::nullopt));
      SaveOnRanks(*calm, options, test.world_size, kOldStep);
      FaultyFileSystem faulty(memory, {at, test.kind});
      const auto stopping = MakePosixStorage(faulty);
      const auto reports = SaveOnRanks(*stopping, options, test.world_size, kNewStep);
      if (test.power_cut) {
        memory.Crash(MixBits(static_cast<uint64_t>(at) * 1000 + seed));
      }
      const int64_t step = LoadedStep(*calm, test.world_size);
      ASSERT_TRUE(step == kOldStep || step == kNewStep) << step;
      if (reports[0].outcome == SaveOutcome::kCommitted) {
        ASSERT_EQ(step, kNewStep) << "a save that was reported durable is gone";
      }
      (step == kOldStep ? loaded_old : loaded_new)++;
      ExpectNextAttemptWorks(memory, test.world_size);
      if (::testing::Test::HasFailure()) {
        return;
      }
    }
  }
  EXPECT_GT(loaded_old, 0);
  EXPECT_GT(loaded_new, 0);
}

TEST(CrashTest, AProcessThatDiesAtAnyCallLeavesTheOldOrTheNew) { CrashAtEveryCall({}); }

TEST(CrashTest, APowerCutAtAnyCallLeavesTheOldOrTheNew) {
  CrashAtEveryCall({.kind = FaultKind::kStop, .power_cut = true});
}

TEST(CrashTest, APowerCutInTheMiddleOfAWriteLeavesTheOldOrTheNew) {
  CrashAtEveryCall({.kind = FaultKind::kTornStop, .power_cut = true});
}

TEST(CrashTest, APowerCutOfTwoRanksLeavesTheOldOrTheNew) {
  CrashAtEveryCall({.world_size = 2, .kind = FaultKind::kTornStop, .power_cut = true});
}

// The folders of checkpoints without a manifest, of steps before `step`.
int RemovedInPart(Storage& storage, int64_t step) {
  const auto commits = ListCheckpoints(storage);
  const auto entries = storage.List("");
  EXPECT_TRUE(commits.ok() && entries.ok());
  int removed = 0;
  for (size_t i = 0; entries.ok() && commits.ok() && i < entries->size(); ++i) {
    const auto id = StepId::FromDirectoryName((*entries)[i].name);
    const bool is_commit =
        id.has_value() && std::find(commits->begin(), commits->end(), *id) != commits->end();
    removed += id.has_value() && id->step < step && !is_commit ? 1 : 0;
  }
  return removed;
}

// How many checkpoints have a manifest, each of which must be whole.
int WholeCommits(Storage& storage) {
  const auto commits = ListCheckpoints(storage);
  EXPECT_TRUE(commits.ok()) << commits.status();
  for (const StepId& id : commits.value_or(std::vector<StepId>())) {
    const auto opened = Checkpoint::Open(storage, id, Verify::kHashes);
    EXPECT_TRUE(opened.ok()) << opened.status();
  }
  return commits.ok() ? static_cast<int>(commits->size()) : 0;
}

// A save with two checkpoints to remove: one before it writes, as an attempt before has left it,
// and one behind its commit.
void CrashAtEveryCallOfACollection(bool power_cut) {
  SetLogLevel(LogLevel::kError);
  constexpr int64_t kLast = 4;
  int removed_in_part = 0;
  int committed = 0;
  int64_t calls = 1;
  for (int64_t at = -1; at < calls; ++at) {  // -1: an undisturbed save, which counts the calls.
    SCOPED_TRACE(absl::StrCat("call ", at, " of ", calls));
    MemoryFileSystem memory;
    const auto calm = MakePosixStorage(memory);
    WriterOptions options = OptionsFor(Begin(*calm, 1, std::nullopt));
    options.keep.newest = 0;  // All.
    for (int64_t step = 1; step < kLast; ++step) {
      ASSERT_TRUE(SaveOnRanks(*calm, options, 1, step)[0].durable());
    }
    options.keep.newest = kKeepMin;
    FaultyFileSystem faulty(memory, {at < 0 ? FaultPlan{}.at : at, FaultKind::kStop});
    const auto stopping = MakePosixStorage(faulty);
    const auto reports = SaveOnRanks(*stopping, options, 1, kLast);
    calls = std::max(calls, faulty.calls());
    if (power_cut) {
      memory.Crash(MixBits(static_cast<uint64_t>(at + 1)));
    }
    const int64_t step = LoadedStep(*calm, 1);
    ASSERT_TRUE(step == kLast || step == kLast - 1) << step;
    ASSERT_TRUE(step == kLast || !reports[0].durable()) << "a durable save is gone";
    ASSERT_GE(WholeCommits(*calm), kKeepMin);
    removed_in_part += RemovedInPart(*calm, kLast) > 0 ? 1 : 0;
    committed += step == kLast ? 1 : 0;
    ExpectNextAttemptWorks(memory, 1);
    if (::testing::Test::HasFailure()) {
      return;
    }
  }
  EXPECT_GT(removed_in_part, 5) << "no call lay between a manifest's removal and its folder's";
  EXPECT_GT(committed, 10) << "few calls lay behind the commit";
  EXPECT_GT(calls, 60);
}

TEST(CrashTest, AProcessThatDiesWhileItRemovesOldCheckpointsLeavesTwoWholeOnes) {
  CrashAtEveryCallOfACollection(/*power_cut=*/false);
}

TEST(CrashTest, APowerCutWhileOldCheckpointsAreRemovedLeavesTwoWholeOnes) {
  CrashAtEveryCallOfACollection(/*power_cut=*/true);
}

// The model of the power cut must be effective: without fsync, data are lost.
TEST(CrashTest, ThePowerCutDropsWhatWasNotSynced) {
  MemoryFileSystem memory;
  int lost = 0;
  for (uint64_t seed = 0; seed < 32; ++seed) {
    const std::string name = absl::StrCat("file", seed);
    const auto handle = memory.Create(name, 0644);
    ASSERT_TRUE(handle.ok());
    const std::vector<std::byte> data(100, std::byte{1});
    ASSERT_TRUE(memory.Write(*handle, data).ok());
    memory.Crash(seed);
    uint64_t bytes = 0;
    const auto opened = memory.OpenForReading(name, &bytes);
    lost += !opened.ok() || bytes < 100 ? 1 : 0;
  }
  EXPECT_GT(lost, 16);
}

// The same with a real process, a real folder and SIGKILL.
TEST(CrashTest, SigkillAtAnyCallLeavesTheOldOrTheNew) {
  SetLogLevel(LogLevel::kError);
  const int64_t calls = CountCalls(1);
  int killed = 0;
  for (int64_t at = 0; at <= calls; ++at) {
    SCOPED_TRACE(absl::StrCat("call ", at, " of ", calls));
    const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
    auto files = OpenRealFileSystem(folder.path());
    ASSERT_TRUE(files.ok()) << files.status();
    const auto calm = MakePosixStorage(**files);
    const WriterOptions options = OptionsFor(Begin(*calm, 1, std::nullopt));
    SaveOnRanks(*calm, options, 1, kOldStep);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // No threads here: the parent's do not survive the fork.
      FaultyFileSystem faulty(**files, {at, FaultKind::kSigkill});
      const auto storage = MakePosixStorage(faulty);
      FakeState state(kNewStep, 0, 1);
      AloneExchange alone;
      Writer writer(*storage, options);
      _exit(writer.Save(kNewStep, state.source(), alone).durable() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    killed += WIFSIGNALED(status) ? 1 : 0;
    const int64_t step = LoadedStep(*calm, 1);
    EXPECT_TRUE(step == kOldStep || step == kNewStep) << step;
    if (!WIFSIGNALED(status)) {
      EXPECT_EQ(step, kNewStep);
    }
    ExpectNextAttemptWorks(**files, 1);
  }
  EXPECT_GT(killed, 10);
}

}  // namespace
}  // namespace dtrain::checkpoint::crash_test
