// WriterOptions::collect_beside: a save ends with its commit, and the checkpoints that stay are
// read back while its caller goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "checkpoint/commit/writer.h"
#include "checkpoint/exchange.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::collect_beside_test {
namespace {

using ::testing::ElementsAre;

// A storage whose states cannot be read before Release: a disk that is slow to read.
class HeldStorage final : public ForwardingStorage {
 public:
  explicit HeldStorage(Storage& inner) : ForwardingStorage(inner) {}

  void Release() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
  }
  // Returns when a reader waits.
  void AwaitReader() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reads_ > 0; });
  }
  int reads() {
    const std::lock_guard lock(mutex_);
    return reads_;
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    if (absl::StrContains(path, "/state/")) {
      std::unique_lock lock(mutex_);
      ++reads_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
    }
    return inner_.OpenFile(path);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  int reads_ = 0;
};

// An exchange of one rank that looks at the storage when a save begins to talk.
class LookingExchange final : public Exchange {
 public:
  explicit LookingExchange(Storage& storage) : storage_(storage) {}
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine, Deadline) override {
    if (!seen_.has_value()) {
      seen_ = *ListCheckpoints(storage_);
    }
    return std::vector<std::string>{std::string(mine)};
  }
  absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline) override {
    return std::string(text);
  }
  const std::vector<StepId>& seen() const { return *seen_; }

 private:
  Storage& storage_;
  std::optional<std::vector<StepId>> seen_;
};

class CollectBesideTest : public ::testing::Test {
 protected:
  CollectBesideTest() {
    const auto epoch = BeginEpoch(*calm_, "job", 1, std::nullopt);
    DT_CHECK_OK(epoch.status());
    WriterOptions options = OptionsFor(*epoch);
    options.keep.newest = 2;
    options.collect_beside = true;
    options.leaves_old = &stops_;
    writer_ = std::make_unique<Writer>(held_, options);
  }
  ~CollectBesideTest() override { held_.Release(); }

  void Save(int64_t step, Exchange& exchange) {
    FakeState state(step, 0, 1);
    const SaveReport report = writer_->Save(step, state.source(), exchange);
    EXPECT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
  }
  void SaveThree() {
    for (const int64_t step : {1, 2, 3}) {
      Save(step, alone_);
    }
  }
  std::vector<StepId> Checkpoints() { return *ListCheckpoints(*calm_); }

  MemoryFileSystem files_;
  const std::unique_ptr<Storage> calm_ = MakePosixStorage(files_);
  HeldStorage held_{*calm_};
  AloneExchange alone_;
  std::atomic<bool> stops_{false};
  std::unique_ptr<Writer> writer_;
};

TEST_F(CollectBesideTest, ASaveEndsBeforeThoseThatStayAreReadBack) {
  SaveThree();
  held_.AwaitReader();
  EXPECT_THAT(Checkpoints(), ElementsAre(StepId{1, 3}, StepId{1, 2}, StepId{1, 1}));
  EXPECT_EQ(writer_->last_durable(), (StepId{1, 3}));
  held_.Release();
  writer_.reset();  // Ends what is under way.
  EXPECT_THAT(Checkpoints(), ElementsAre(StepId{1, 3}, StepId{1, 2}));
  EXPECT_GE(held_.reads(), 2);
}

// A scheduler may leave it little time, which is for the save and its copy to other places.
TEST_F(CollectBesideTest, AJobThatStopsReadsNothingBackAndTheNextAttemptRemoves) {
  stops_ = true;
  SaveThree();
  writer_.reset();
  EXPECT_EQ(held_.reads(), 0);
  EXPECT_THAT(Checkpoints(), ElementsAre(StepId{1, 3}, StepId{1, 2}, StepId{1, 1}));
  WriterOptions options = OptionsFor(*BeginEpoch(*calm_, "job", 1, StepId{1, 3}));
  options.keep.newest = 2;
  writer_ = std::make_unique<Writer>(*calm_, options);
  FakeState state(4, 0, 1);
  EXPECT_TRUE(writer_->Save(4, state.source(), alone_).durable());
  EXPECT_THAT(Checkpoints(), ElementsAre(StepId{2, 4}, StepId{1, 3}));
}

// It would else use up the time that is left for the last save, which waits for it.
TEST_F(CollectBesideTest, AStopGivesUpARemovalThatStillReads) {
  SaveThree();
  held_.AwaitReader();
  stops_ = true;
  held_.Release();
  Save(4, alone_);
  EXPECT_EQ(held_.reads(), 1);
  writer_.reset();
  EXPECT_THAT(Checkpoints(), ElementsAre(StepId{1, 4}, StepId{1, 3}, StepId{1, 2}, StepId{1, 1}));
}

TEST_F(CollectBesideTest, TheNextSaveFindsOldCheckpointsGone) {
  SaveThree();
  held_.AwaitReader();
  LookingExchange looking(*calm_);
  std::thread next([&] { Save(4, looking); });
  held_.Release();
  next.join();
  EXPECT_THAT(looking.seen(), ElementsAre(StepId{1, 3}, StepId{1, 2}));
  writer_.reset();
  EXPECT_THAT(Checkpoints(), ElementsAre(StepId{1, 4}, StepId{1, 3}));
}

TEST_F(CollectBesideTest, ACheckpointThatIsDamagedDoesNotCountAsKept) {
  SetLogLevel(LogLevel::kError);
  SaveThree();
  held_.AwaitReader();
  const std::string damaged = absl::StrCat(StepId{1, 2}.DirectoryName(), "/", StatePath(0, 1));
  DT_CHECK_OK(calm_->RemoveFile(damaged));
  held_.Release();
  writer_.reset();
  EXPECT_THAT(Checkpoints(), ElementsAre(StepId{1, 3}, StepId{1, 2}, StepId{1, 1}));
}

}  // namespace
}  // namespace dtrain::checkpoint::collect_beside_test
