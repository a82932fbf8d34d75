// Runs that lose power again and again, while they save, while they remove old checkpoints and
// while they start: after each loss the newest checkpoint that was reported durable loads, bit for
// bit.
//
// One seed is one run: how many ranks it has, what it keeps, at which system call it is cut off,
// and what of the unsynced writes survives. `--gtest_random_seed=SEED` runs that seed alone again.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::long_power_loss_test {
namespace {

// Ranks as threads of which one runs at a time. Where it waits for others, the next one is drawn by
// the seed, so that the same seed gives the same calls in the same order.
class Turns {
 public:
  Turns(int world_size, uint64_t seed)
      : random_(seed), running_(static_cast<size_t>(world_size), true), texts_(running_.size()) {}

  // Runs body(rank, exchange) on every rank.
  void Run(const std::function<void(int rank, Exchange& exchange)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size(); ++rank) {
      threads.emplace_back([this, &body, rank] {
        Await(rank);
        TurnExchange exchange(*this, rank);
        body(rank, exchange);
        const std::lock_guard lock(mutex_);
        running_[static_cast<size_t>(rank)] = false;
        PassOn();
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

 private:
  class TurnExchange final : public Exchange {
   public:
    TurnExchange(Turns& turns, int rank) : turns_(turns), rank_(rank) {}
    int rank() const override { return rank_; }
    int world_size() const override { return turns_.world_size(); }

    absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine, Deadline) override {
      turns_.texts_[static_cast<size_t>(rank_)].emplace_back(mine);
      const size_t round = gathers_++;
      std::vector<std::string> all;
      for (size_t rank = 0; rank_ == 0 && rank < turns_.texts_.size(); ++rank) {
        DT_RETURN_IF_ERROR(
            turns_.WaitFor(rank_, [&] { return turns_.texts_[rank].size() > round; }));
        all.push_back(turns_.texts_[rank][round]);
      }
      return all;
    }

    absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline) override {
      const size_t round = broadcasts_++;
      if (rank_ == 0) {
        turns_.broadcasts_.emplace_back(text);
        return std::string(text);
      }
      DT_RETURN_IF_ERROR(turns_.WaitFor(rank_, [&] { return turns_.broadcasts_.size() > round; }));
      return turns_.broadcasts_[round];
    }

   private:
    Turns& turns_;
    const int rank_;
    size_t gathers_ = 0;
    size_t broadcasts_ = 0;
  };

  int world_size() const { return static_cast<int>(running_.size()); }

  void Await(int rank) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == rank; });
  }

  // DeadlineExceeded: the ranks that it waits for have ended.
  absl::Status WaitFor(int rank, absl::FunctionRef<bool()> ready) {
    while (!ready()) {
      {
        const std::lock_guard lock(mutex_);
        if (!PassOn()) {
          return absl::DeadlineExceededError("the other ranks have ended");
        }
      }
      Await(rank);
    }
    return absl::OkStatus();
  }

  // Gives the turn to another rank that has not ended; false: there is none.
  bool PassOn() {
    std::vector<int> others;
    for (int rank = 0; rank < world_size(); ++rank) {
      if (rank != turn_ && running_[static_cast<size_t>(rank)]) {
        others.push_back(rank);
      }
    }
    if (others.empty()) {
      return false;
    }
    turn_ = others[random_.Below(others.size())];
    changed_.notify_all();
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  SplitMix64 random_;
  int turn_ = 0;
  std::vector<bool> running_;
  std::vector<std::vector<std::string>> texts_;  // By rank: the texts gathered so far.
  std::vector<std::string> broadcasts_;
};

// Counts what the states showed, over all seeds.
struct Seen {
  int64_t states = 0;        // Losses of power.
  int64_t kills = 0;         // Deaths of a process alone.
  int64_t cut_saves = 0;     // States with a newer save that was cut off.
  int64_t cut_removals = 0;  // States with an old checkpoint of which only a part was removed.
  int64_t unreported = 0;    // States in which a save counts that nobody was told of.
  int64_t empty = 0;         // States before the first commit.
  int64_t removed = 0;       // Checkpoints that the runs removed.
  int64_t refused = 0;       // Attempts that wanted --fresh.
};

// One run, over all of its attempts.
class Run {
 public:
  Run(uint64_t seed, bool with_kills, Seen& seen)
      : random_(MixBits(seed)), with_kills_(with_kills), seen_(seen) {
    keep_.newest = static_cast<int>(2 + random_.Below(2));
    keep_.every = random_.Below(3) == 0 ? 4 : 0;
  }

  void Live() {
    const uint64_t attempts = 2 + random_.Below(4);
    for (uint64_t attempt = 0; attempt < attempts && !::testing::Test::HasFailure(); ++attempt) {
      SCOPED_TRACE(absl::StrCat("attempt ", attempt + 1, " of ", attempts));
      Attempt();
      if (with_kills_ && random_.Below(2) == 0) {
        ++seen_.kills;
        CheckKilled();
        continue;
      }
      memory_.Crash(random_.Next());
      ++seen_.states;
      CheckState();
    }
  }

 private:
  // Starts, resumes and saves until the file system stops, or until all saves are made.
  void Attempt() {
    const int world_size = random_.Below(3) == 0 ? 2 : 1;
    const uint64_t saves = 1 + random_.Below(4);
    const auto at = static_cast<int64_t>(random_.Below(40 + saves * (world_size == 1 ? 90 : 130)));
    FaultyFileSystem faulty(memory_,
                            {at, random_.Below(2) == 0 ? FaultKind::kStop : FaultKind::kTornStop});
    const auto storage = MakePosixStorage(faulty);
    Turns turns(world_size, random_.Next());
    turns.Run([&](int rank, Exchange& exchange) {
      AttemptOptions attempt;
      attempt.job = "job";
      attempt.fresh = fresh_;
      const auto begun = BeginAttempt(*storage, exchange, attempt, absl::Minutes(1));
      if (!begun.ok()) {
        if (rank == 0 && faulty.calls() <= at) {
          Refused(begun.status());
        }
        return;
      }
      if (rank == 0) {
        fresh_ = false;
      }
      WriterOptions options = OptionsFor(begun->epoch);
      options.keep = keep_;
      Writer writer(*storage, options);
      int64_t step = begun->checkpoint == nullptr ? 0 : begun->checkpoint->manifest().id.step;
      for (uint64_t save = 0; save < saves; ++save) {
        ++step;
        if (rank == 0) {
          tried_ = std::max(tried_, step);
        }
        FakeState state(step, rank, world_size);
        if (!writer.Save(step, state.source(), exchange).durable()) {
          return;
        }
        if (rank == 0) {
          durable_ = std::max(durable_, step);
          saved_.insert(step);
        }
      }
    });
  }

  // An attempt did not start although its file system works: it resumed from a commit of a process
  // that had died before the commit was durable, and the power took that commit.
  void Refused(const absl::Status& status) {
    EXPECT_TRUE(with_kills_ && durable_ == 0 && absl::IsFailedPrecondition(status)) << status;
    fresh_ = true;
    ++seen_.refused;
  }

  static void ExpectBits(Checkpoint& checkpoint) {
    const Manifest& manifest = checkpoint.manifest();
    for (int rank = 0; rank < manifest.world_size; ++rank) {
      const absl::Status same =
          FakeState(manifest.id.step, rank, manifest.world_size).Compare(checkpoint);
      ASSERT_TRUE(same.ok()) << manifest.id.ToString() << " rank " << rank << ": " << same;
    }
  }

  // The checkpoint to resume from is the newest durable one, or a newer one that was not reported.
  void CheckNewest(Storage& storage, std::optional<StepId>& newest) {
    const auto latest = FindLatest(storage);
    if (!latest.ok()) {
      ASSERT_TRUE(absl::IsNotFound(latest.status())) << latest.status();
      ASSERT_EQ(durable_, 0) << "a save that was reported durable is gone: " << latest.status();
      ++seen_.empty;
      return;
    }
    newest = (*latest)->manifest().id;
    ASSERT_GE(newest->step, durable_) << "a save that was reported durable is gone";
    ASSERT_LE(newest->step, tried_);
    seen_.unreported += newest->step > durable_ ? 1 : 0;
    ExpectBits(**latest);
  }

  // Only the process died: all that it wrote is there.
  void CheckKilled() {
    std::optional<StepId> newest;
    CheckNewest(*MakePosixStorage(memory_), newest);
  }

  void CheckState() {
    const auto storage = MakePosixStorage(memory_);
    std::optional<StepId> newest;
    CheckNewest(*storage, newest);
    const auto commits = ListCheckpoints(*storage);
    ASSERT_TRUE(commits.ok()) << commits.status();
    int whole = 0;
    for (const StepId& id : *commits) {
      const auto checkpoint = Checkpoint::Open(*storage, id, Verify::kHashes);
      if (checkpoint.ok()) {
        ++whole;
        ExpectBits(**checkpoint);
        continue;
      }
      // A process that died may have left a removal whose order nothing had made durable.
      ASSERT_TRUE(with_kills_ && newest && id < *newest)
          << id.ToString() << " has a manifest and is damaged: " << checkpoint.status();
    }
    // Two stay, so that one may be damaged by something else. A process that died may have left a
    // commit that was not durable yet, which counted as one of them.
    const int least = with_kills_ ? 1 : kKeepMin;
    ASSERT_GE(whole, std::min<int>(least, static_cast<int>(saved_.size())));
    CountFolders(*storage, *commits);
    if (newest) {  // It outlived a loss of power, so it is durable.
      durable_ = std::max(durable_, newest->step);
    }
  }

  void CountFolders(Storage& storage, const std::vector<StepId>& commits) {
    const auto entries = storage.List("");
    ASSERT_TRUE(entries.ok()) << entries.status();
    bool cut_save = false;
    bool cut_removal = false;
    for (const Storage::Entry& entry : *entries) {
      const auto id = StepId::FromDirectoryName(entry.name);
      if (id && std::find(commits.begin(), commits.end(), *id) == commits.end()) {
        (saved_.contains(id->step) ? cut_removal : cut_save) = true;
      }
    }
    seen_.cut_saves += cut_save ? 1 : 0;
    seen_.cut_removals += cut_removal ? 1 : 0;
    for (auto step = saved_.begin(); step != saved_.end();) {
      const bool there = std::any_of(commits.begin(), commits.end(),
                                     [&](const StepId& id) { return id.step == *step; });
      seen_.removed += there ? 0 : 1;
      step = there ? std::next(step) : saved_.erase(step);
    }
  }

  MemoryFileSystem memory_;
  SplitMix64 random_;
  const bool with_kills_;
  Seen& seen_;
  Retention keep_;
  bool fresh_ = false;
  int64_t durable_ = 0;      // The newest step that a save reported as durable.
  int64_t tried_ = 0;        // The newest step whose save began.
  std::set<int64_t> saved_;  // Steps reported as durable and not removed since.
};

Seen LoseRepeatedly(int64_t states, bool with_kills) {
  SetLogLevel(LogLevel::kError);
  Seen seen;
  const auto chosen = static_cast<uint64_t>(::testing::GTEST_FLAG(random_seed));
  uint64_t seed = chosen > 0 ? chosen : 1;
  for (; seen.states < states && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, "; to run it alone: --gtest_random_seed=", seed));
    Run(seed, with_kills, seen).Live();
    if (chosen > 0) {
      break;
    }
  }
  std::printf(
      "seeds %llu to %llu: %lld losses of power, %lld kills; in %lld states a save was cut "
      "off, in %lld a removal; in %lld a save counts that was not reported, in %lld there "
      "is none; %lld checkpoints were removed, %lld attempts refused to start\n",
      static_cast<unsigned long long>(chosen > 0 ? chosen : 1),
      static_cast<unsigned long long>(chosen > 0 ? chosen : seed - 1),
      static_cast<long long>(seen.states), static_cast<long long>(seen.kills),
      static_cast<long long>(seen.cut_saves), static_cast<long long>(seen.cut_removals),
      static_cast<long long>(seen.unreported), static_cast<long long>(seen.empty),
      static_cast<long long>(seen.removed), static_cast<long long>(seen.refused));
  if (chosen == 0 && !::testing::Test::HasFailure()) {  // All that may be lost was there to lose.
    EXPECT_GT(seen.cut_saves, states / 10);
    EXPECT_GT(seen.cut_removals, states / 100);
    EXPECT_GT(seen.unreported, 0);
    EXPECT_GT(seen.empty, 0);
    EXPECT_GT(seen.removed, states / 10);
  }
  return seen;
}

bool Long() { return std::getenv("DTRAIN_TEST_LONG") != nullptr; }

TEST(PowerLossTest, NoStateLosesADurableCheckpointOrHoldsADamagedOne) {
  LoseRepeatedly(Long() ? 40'000 : 2'500, /*with_kills=*/false);
}

// Processes die as well, and the next attempt goes on from what it sees, durable or not.
TEST(PowerLossTest, NoStateAfterKillsAndLossesLosesADurableCheckpoint) {
  const Seen seen = LoseRepeatedly(Long() ? 15'000 : 1'000, /*with_kills=*/true);
  if (::testing::GTEST_FLAG(random_seed) == 0) {
    EXPECT_GT(seen.kills, 200);
  }
}

// One attempt of one rank that resumes, saves `step` and stops at the call `at`. Gives whether the
// save was reported durable.
bool SaveOnce(MemoryFileSystem& memory, int64_t at, int64_t step) {
  FaultyFileSystem faulty(memory, {at, FaultKind::kStop});
  const auto storage = MakePosixStorage(faulty);
  AloneExchange alone;
  AttemptOptions attempt;
  attempt.job = "job";
  const auto begun = BeginAttempt(*storage, alone, attempt, absl::Minutes(1));
  if (!begun.ok()) {
    return false;
  }
  WriterOptions options = OptionsFor(begun->epoch);
  options.keep.newest = kKeepMin;
  Writer writer(*storage, options);
  FakeState state(step, 0, 1);
  return writer.Save(step, state.source(), alone).durable();
}

int64_t NewestStep(MemoryFileSystem& memory) {
  const auto latest = FindLatest(*MakePosixStorage(memory));
  return latest.ok() ? (*latest)->manifest().id.step : 0;
}

// Step 1 is durable; then a process dies at each of the calls `at`, one step later each.
void DieInARow(MemoryFileSystem& memory, const std::vector<int64_t>& at) {
  EXPECT_TRUE(SaveOnce(memory, FaultPlan{}.at, 1));
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_FALSE(SaveOnce(memory, at[i], 2 + static_cast<int64_t>(i)));
  }
}

// Two processes in a row die after the rename that commits and before the fsync that makes it
// durable. Older checkpoints are removed only when those that count instead of them are durable.
TEST(PowerLossTest, CommitsOfDeadProcessesAreMadeDurableBeforeTheyCount) {
  SetLogLevel(LogLevel::kError);
  std::vector<int64_t> at;
  for (const int64_t step : {2, 3}) {
    for (int64_t call = 0; at.size() + 2 == static_cast<size_t>(step); ++call) {
      MemoryFileSystem memory;
      DieInARow(memory, at);
      ASSERT_FALSE(SaveOnce(memory, call, step)) << "no call lies between rename and fsync";
      if (NewestStep(memory) == step) {
        at.push_back(call);
      }
    }
  }
  int64_t call = 0;
  for (bool durable = false; !durable; ++call) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      MemoryFileSystem memory;
      DieInARow(memory, at);
      durable = SaveOnce(memory, call, 4);
      memory.Crash(MixBits(static_cast<uint64_t>(call) * 1000 + seed));
      ASSERT_GE(NewestStep(memory), 1) << "call " << call << ", seed " << seed;
    }
  }
  EXPECT_GT(call, 50);
}

}  // namespace
}  // namespace dtrain::checkpoint::long_power_loss_test
