// The rules that say from which commits a run may resume, which commits are removed, and which
// writers are fenced.
#include "checkpoint/restore/lineage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::lineage_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EpochRecord Record(int64_t epoch, std::optional<StepId> from) {
  EpochRecord record;
  record.epoch = epoch;
  record.resumed_from = from;
  return record;
}

TEST(LineageTest, CommitsBeyondTheStepThatWasResumedAreOffTheLine) {
  const EpochMap epochs = {{1, Record(1, std::nullopt)}, {2, Record(2, StepId{1, 10})}};
  EXPECT_THAT(OnLineage(Lineage(epochs), {{1, 5}, {1, 10}, {1, 15}, {2, 12}}),
              ElementsAre(StepId{2, 12}, StepId{1, 10}, StepId{1, 5}));
}

TEST(LineageTest, AnEpochThatCommittedNothingIsPassedOver) {
  const EpochMap epochs = {
      {1, Record(1, std::nullopt)}, {2, Record(2, StepId{1, 10})}, {3, Record(3, StepId{1, 10})}};
  EXPECT_THAT(OnLineage(Lineage(epochs), {{1, 10}, {2, 20}}), ElementsAre(StepId{1, 10}))
      << "a stale writer's commit of epoch 2 must never be chosen";
}

TEST(LineageTest, AFreshStartEndsTheLine) {
  const EpochMap epochs = {{1, Record(1, std::nullopt)}, {2, Record(2, std::nullopt)}};
  EXPECT_THAT(OnLineage(Lineage(epochs), {{1, 10}}), IsEmpty());
}

TEST(LineageTest, ADamagedRecordLeadsToTheEpochBefore) {
  const EpochMap epochs = {{1, Record(1, std::nullopt)}, {2, std::nullopt}};
  EXPECT_THAT(OnLineage(Lineage(epochs), {{1, 10}}), ElementsAre(StepId{1, 10}));
}

TEST(LineageTest, ARecordThatPointsForwardsDoesNotLoop) {
  const EpochMap epochs = {{1, Record(1, StepId{2, 5})}, {2, Record(2, StepId{1, 5})}};
  EXPECT_THAT(OnLineage(Lineage(epochs), {{1, 5}, {2, 6}}),
              ElementsAre(StepId{2, 6}, StepId{1, 5}));
}

TEST(LineageTest, ARecordThatPointsAtItselfOrAtALostOneEndsTheLine) {
  EXPECT_THAT(OnLineage(Lineage({{2, Record(2, StepId{2, 5})}}), {{1, 5}, {2, 6}}),
              ElementsAre(StepId{2, 6}));
  EXPECT_THAT(OnLineage(Lineage({{3, Record(3, StepId{1, 5})}}), {{1, 5}, {1, 6}, {2, 1}}),
              ElementsAre(StepId{1, 5}))
      << "the record of epoch 1 is lost, its commits are not";
}

TEST(LineageTest, DamagedRecordsLeadBackToTheFirst) {
  const EpochMap epochs = {{1, std::nullopt}, {3, std::nullopt}, {4, Record(4, StepId{3, 20})}};
  EXPECT_THAT(OnLineage(Lineage(epochs), {{1, 10}, {3, 20}, {3, 21}, {4, 22}}),
              ElementsAre(StepId{4, 22}, StepId{3, 20}, StepId{1, 10}));
}

TEST(LineageTest, WithoutRecordsEveryCommitCounts) {
  EXPECT_THAT(OnLineage({}, {{1, 5}, {2, 3}}), ElementsAre(StepId{2, 3}, StepId{1, 5}));
}

RetentionInput Input(std::vector<StepId> commits, int keep) {
  RetentionInput input;
  input.lineage = {{3, kStepMax}, {2, 10}};
  input.commits = std::move(commits);
  input.keep.newest = keep;
  input.resumed_from = StepId{2, 10};
  input.own_epoch = 3;
  return input;
}

const auto kAllGood = [](const StepId&) { return true; };

TEST(RetentionTest, TheNewestVerifiedAndTheResumeSourceStay) {
  EXPECT_THAT(CommitsToRemove(Input({{3, 14}, {3, 13}, {3, 12}, {2, 10}, {2, 9}}, 2), kAllGood),
              ElementsAre(StepId{2, 9}, StepId{3, 12}));
}

TEST(RetentionTest, ADamagedCheckpointDoesNotCountAsKept) {
  const auto verified = [](const StepId& id) { return id.step != 14; };
  EXPECT_THAT(CommitsToRemove(Input({{3, 14}, {3, 13}, {3, 12}, {3, 11}}, 2), verified),
              ElementsAre(StepId{3, 11}));
}

TEST(RetentionTest, NeverFewerThanTwo) {
  EXPECT_THAT(CommitsToRemove(Input({{3, 14}, {3, 13}, {3, 12}}, 1), kAllGood),
              ElementsAre(StepId{3, 12}));
  EXPECT_THAT(CommitsToRemove(Input({{3, 14}, {3, 13}}, 1), kAllGood), IsEmpty());
}

TEST(RetentionTest, NothingOffTheLineGoesBeforeEnoughIsKept) {
  const RetentionInput input = Input({{3, 14}, {3, 13}, {3, 12}, {2, 99}}, 2);
  const auto one_good = [](const StepId& id) { return id.step == 12; };
  EXPECT_THAT(CommitsToRemove(input, one_good), IsEmpty());
}

TEST(RetentionTest, WhatIsBesideTheLineGoesFromItsOldestEpochOnButNotItsSource) {
  RetentionInput input = Input({{3, 14}, {3, 13}, {3, 12}, {2, 99}, {4, 1}}, 2);
  input.resumed_from = StepId{2, 99};
  EXPECT_THAT(CommitsToRemove(input, kAllGood), ElementsAre(StepId{3, 12}))
      << "epoch 4 is newer than this attempt";
  input.own_epoch = 5;
  input.resumed_from = std::nullopt;
  EXPECT_THAT(CommitsToRemove(input, kAllGood),
              ElementsAre(StepId{2, 99}, StepId{3, 12}, StepId{4, 1}));
}

TEST(RetentionTest, MultiplesOfANumberOfStepsStayForGood) {
  RetentionInput input = Input({{3, 15}, {3, 14}, {3, 13}, {3, 12}, {2, 10}, {2, 9}, {2, 5}}, 2);
  input.keep.every = 5;
  EXPECT_THAT(CommitsToRemove(input, kAllGood),
              ElementsAre(StepId{2, 9}, StepId{3, 12}, StepId{3, 13}));
  input.keep.every = 4;
  EXPECT_THAT(CommitsToRemove(input, kAllGood),
              ElementsAre(StepId{2, 5}, StepId{2, 9}, StepId{3, 13}));
}

TEST(RetentionTest, ZeroKeepsAll) {
  EXPECT_THAT(CommitsToRemove(Input({{3, 14}, {3, 13}, {3, 12}, {3, 11}}, 0), kAllGood), IsEmpty());
}

TEST(RetentionTest, NothingIsReadBackBeforeSomethingCouldGo) {
  const auto never = [](const StepId&) {
    ADD_FAILURE() << "verified too early";
    return true;
  };
  EXPECT_THAT(CommitsToRemove(Input({{3, 14}, {3, 13}, {2, 10}}, 3), never), IsEmpty());
}

TEST(RetentionTest, CommitsOffTheLineGoAndThoseOfAnotherRunStay) {
  RetentionInput input = Input({{3, 14}, {3, 13}, {3, 12}, {2, 99}, {1, 7}}, 2);
  EXPECT_THAT(CommitsToRemove(input, kAllGood), ElementsAre(StepId{2, 99}, StepId{3, 12}));
}

class FencingTest : public ::testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kError); }
  EpochRecord Begin(std::optional<StepId> from) {
    auto epoch = BeginEpoch(*storage_, "job", 1, from);
    DT_CHECK_OK(epoch.status());
    return *epoch;
  }
  MemoryFileSystem memory_;
  const std::unique_ptr<Storage> storage_ = MakePosixStorage(memory_);
};

TEST_F(FencingTest, TheWriterOfAnOlderEpochIsToldToEndOnEveryRank) {
  const EpochRecord first = Begin(std::nullopt);
  ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(first), 1, 10)[0].durable());
  const EpochRecord second = Begin(StepId{1, 10});
  EXPECT_EQ(second.epoch, 2);
  for (const int world_size : {1, 3}) {
    for (const SaveReport& stale : SaveOnRanks(*storage_, OptionsFor(first), world_size, 20)) {
      EXPECT_EQ(stale.outcome, SaveOutcome::kFenced);
      EXPECT_EQ(stale.status.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(std::string(stale.status.message()), HasSubstr("epochs/E00000002"));
    }
  }
  EXPECT_TRUE(SaveOnRanks(*storage_, OptionsFor(second), 1, 11)[0].durable());
  EXPECT_EQ((*FindLatest(*storage_))->manifest().id, (StepId{2, 11}));
}

// A source during whose save a newer attempt begins: the fence must hold at the commit too.
class OvertakenSource : public StateSource {
 public:
  OvertakenSource(StateSource& inner, std::function<void()> overtake)
      : inner_(inner), overtake_(std::move(overtake)) {}
  absl::StatusOr<std::vector<TensorSpec>> ModelTensors() override { return inner_.ModelTensors(); }
  absl::Status GiveModel(size_t i, ByteSink sink) override { return inner_.GiveModel(i, sink); }
  absl::StatusOr<std::vector<TensorSpec>> StateTensors() override {
    overtake_();
    return inner_.StateTensors();
  }
  absl::Status GiveState(size_t i, ByteSink sink) override { return inner_.GiveState(i, sink); }
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ModelFiles() override {
    return inner_.ModelFiles();
  }
  absl::StatusOr<JobState> Job() override { return inner_.Job(); }
  absl::StatusOr<Json> Rank() override { return inner_.Rank(); }

 private:
  StateSource& inner_;
  const std::function<void()> overtake_;
};

TEST_F(FencingTest, AnAttemptThatIsOvertakenWhileItWritesDoesNotCommit) {
  const EpochRecord first = Begin(std::nullopt);
  FakeState state(10, 0, 1);
  OvertakenSource source(state.source(), [&] { Begin(std::nullopt); });
  AloneExchange alone;
  Writer writer(*storage_, OptionsFor(first));
  const SaveReport report = writer.Save(10, source, alone);
  EXPECT_EQ(report.outcome, SaveOutcome::kFenced) << report.status;
  EXPECT_FALSE(storage_->List("step-000000000010.e1").ok()) << "its files must be gone";
}

// A source that cannot list its model.
class NoModelSource final : public OvertakenSource {
 public:
  explicit NoModelSource(StateSource& inner) : OvertakenSource(inner, [] {}) {}
  absl::StatusOr<std::vector<TensorSpec>> ModelTensors() override {
    return absl::DataLossError("the weights are gone");
  }
};

TEST_F(FencingTest, ASaveWhoseModelCannotBeListedIsGivenUpOnEveryRank) {
  const WriterOptions options = OptionsFor(Begin(std::nullopt));
  std::vector<SaveReport> reports(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    FakeState state(10, rank, 2);
    NoModelSource without(state.source());
    StateSource& source = rank == 1 ? static_cast<StateSource&>(without) : state.source();
    Writer writer(*storage_, options);
    reports[static_cast<size_t>(rank)] = writer.Save(10, source, exchange);
  });
  for (const SaveReport& report : reports) {
    EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
    EXPECT_THAT(std::string(report.status.message()), HasSubstr("rank 1: the weights are gone"));
  }
  EXPECT_THAT(*ListCheckpoints(*storage_), IsEmpty());
}

TEST_F(FencingTest, ASnapshotThatCouldNotBeTakenIsGivenUpOnEveryRank) {
  const WriterOptions options = OptionsFor(Begin(std::nullopt));
  std::vector<SaveReport> reports(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    FakeState state(10, rank, 2);
    if (rank == 1) {
      state.source().status = absl::DataLossError("the last step did not end");
    }
    Writer writer(*storage_, options);
    reports[static_cast<size_t>(rank)] = writer.Save(10, state.source(), exchange);
  });
  for (const SaveReport& report : reports) {
    EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("rank 1: the last step did not end"));
  }
  EXPECT_THAT(*ListCheckpoints(*storage_), IsEmpty());
}

TEST_F(FencingTest, AttemptsThatBeginTogetherGetDifferentEpochs) {
  std::vector<int64_t> epochs(8);
  RunRanks(8, [&](int rank, Exchange&) {
    epochs[static_cast<size_t>(rank)] = Begin(std::nullopt).epoch;
  });
  EXPECT_THAT(epochs, ::testing::UnorderedElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

// Records of epochs may be lost. The number of an epoch that saved a checkpoint is never used
// again.
TEST_F(FencingTest, AnAttemptNumbersItselfBehindTheCheckpointThatItResumes) {
  EXPECT_EQ(Begin(StepId{5, 10}).epoch, 6);
  EXPECT_EQ(Begin(StepId{5, 10}).epoch, 7);
  EXPECT_EQ(ReadEpoch(*storage_, 7)->resumed_from, (StepId{5, 10}));
}

TEST_F(FencingTest, TheRecordOfAnEpochHoldsTheWorldSizeAndNoEpochFollowsTheLast) {
  ASSERT_TRUE(BeginEpoch(*storage_, "job", 3, std::nullopt).ok());
  EXPECT_EQ(ReadEpoch(*storage_, 1)->world_size, 3);
  EXPECT_EQ(Begin(StepId{kEpochMax - 1, 10}).epoch, kEpochMax);
  const absl::Status beyond = BeginEpoch(*storage_, "job", 1, std::nullopt).status();
  EXPECT_EQ(beyond.code(), absl::StatusCode::kResourceExhausted) << beyond;
}

// The damage leaves the file's size as it was.
TEST_F(FencingTest, ACheckpointWithADamagedByteDoesNotCountAsKept) {
  const EpochRecord epoch = Begin(std::nullopt);
  for (const int64_t step : {1, 2}) {
    ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(epoch), 1, step)[0].durable());
  }
  const std::string path = "step-000000000002.e1/" + StatePath(0, 1);
  std::string content = ReadAll(*storage_, path);
  content.back() = static_cast<char>(content.back() ^ 1);
  ASSERT_TRUE(storage_->Replace(path, content).ok());
  WriterOptions options = OptionsFor(epoch);
  options.keep.newest = 2;
  SetLogLevel(LogLevel::kWarning);
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(SaveOnRanks(*storage_, options, 1, 3)[0].durable());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(absl::StrCat("checkpoint of ", StepId{1, 2}.ToString(),
                                           " does not count as kept: ")),
                    HasSubstr(path)));
  EXPECT_THAT(*ListCheckpoints(*storage_), ElementsAre(StepId{1, 3}, StepId{1, 2}, StepId{1, 1}));
}

TEST_F(FencingTest, TheRecordOfAnotherEpochIsRefusedByBothNumbers) {
  Begin(std::nullopt);
  Begin(std::nullopt);
  ASSERT_TRUE(storage_->Replace(EpochPath(2), ReadAll(*storage_, EpochPath(1))).ok());
  const absl::Status status = ReadEpoch(*storage_, 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(EpochPath(2)), HasSubstr(" holds the record of epoch 1")));
}

TEST_F(FencingTest, LeftoversOfEndedSavesGoAndCommitsStay) {
  const EpochRecord first = Begin(std::nullopt);
  ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(first), 1, 10)[0].durable());
  ASSERT_TRUE(storage_->MakeDirectory("step-000000000020.e1/model").ok());
  ASSERT_TRUE(storage_->CreateFile("step-000000000020.e1/model/x", 0, Access::kOwner).ok());
  ASSERT_TRUE(storage_->CreateFile(".tmp-latest-1", 0, Access::kOwner).ok());
  ASSERT_TRUE(storage_->CreateFile("epochs/.tmp-E00000001-1", 0, Access::kOwner).ok());
  ASSERT_TRUE(storage_->CreateFile("epochs/.tmp-E00000009-1", 0, Access::kOwner).ok());
  ASSERT_TRUE(storage_->CreateFile("notes.txt", 0, Access::kOwner).ok());
  const EpochRecord second = Begin(StepId{1, 10});
  // Folders of an earlier save of this attempt that could not be cleaned up, and of a later
  // attempt.
  ASSERT_TRUE(storage_->MakeDirectory("step-000000000009.e2/model").ok());
  ASSERT_TRUE(storage_->MakeDirectory("step-000000000012.e3/model").ok());
  ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(second), 1, 11)[0].durable());
  std::vector<std::string> names;
  for (const char* folder : {"", "epochs"}) {
    const auto entries = storage_->List(folder);
    ASSERT_TRUE(entries.ok());
    for (const Storage::Entry& entry : *entries) {
      names.push_back(entry.name);
    }
  }
  EXPECT_THAT(names, ElementsAre("epochs", "latest", "notes.txt", "step-000000000010.e1",
                                 "step-000000000011.e2", "step-000000000012.e3", ".tmp-E00000009-1",
                                 "E00000001", "E00000002"));
}

TEST_F(FencingTest, LeftoversGoBeforeTheCommit) {
  Begin(std::nullopt);
  ASSERT_TRUE(storage_->MakeDirectory("step-000000000020.e1/model").ok());
  const EpochRecord second = Begin(std::nullopt);
  FakeState state(10, 0, 1);
  bool was_there = true;
  OvertakenSource source(state.source(),
                         [&] { was_there = storage_->List("step-000000000020.e1").ok(); });
  AloneExchange alone;
  Writer writer(*storage_, OptionsFor(second));
  EXPECT_TRUE(writer.Save(10, source, alone).durable());
  EXPECT_FALSE(was_there) << "it took the room that this save may need";
}

TEST_F(FencingTest, AnAttemptThatWasOvertakenCollectsNothing) {
  Begin(std::nullopt);
  ASSERT_TRUE(storage_->MakeDirectory("step-000000000020.e1/model").ok());
  const EpochRecord second = Begin(std::nullopt);
  Begin(std::nullopt);
  EXPECT_EQ(SaveOnRanks(*storage_, OptionsFor(second), 1, 10)[0].outcome, SaveOutcome::kFenced);
  EXPECT_TRUE(storage_->List("step-000000000020.e1").ok());
}

TEST_F(FencingTest, NothingGoesWhereADamagedRecordHidesTheLine) {
  const EpochRecord first = Begin(std::nullopt);
  ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(first), 1, 1)[0].durable());
  WriterOptions options = OptionsFor(Begin(StepId{1, 1}));
  ASSERT_TRUE(storage_->Replace(EpochPath(1), "damaged").ok());
  options.keep.newest = 2;
  AloneExchange alone;
  Writer writer(*storage_, options);
  for (const int64_t step : {2, 3, 4, 5}) {
    FakeState state(step, 0, 1);
    ASSERT_TRUE(writer.Save(step, state.source(), alone).durable());
  }
  EXPECT_EQ(ListCheckpoints(*storage_)->size(), 5U);
}

TEST_F(FencingTest, TheSourceOfTheResumeStaysHoweverOld) {
  const EpochRecord first = Begin(std::nullopt);
  ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(first), 1, 1)[0].durable());
  ASSERT_TRUE(SaveOnRanks(*storage_, OptionsFor(first), 1, 2)[0].durable());
  WriterOptions options = OptionsFor(Begin(StepId{1, 2}));
  options.keep.newest = 2;
  AloneExchange alone;
  Writer writer(*storage_, options);
  for (const int64_t step : {3, 4, 5}) {
    FakeState state(step, 0, 1);
    ASSERT_TRUE(writer.Save(step, state.source(), alone).durable());
  }
  EXPECT_THAT(*ListCheckpoints(*storage_), ElementsAre(StepId{2, 5}, StepId{2, 4}, StepId{1, 2}));
  EXPECT_EQ(ReadManifest(*storage_, {2, 4})->parent, (StepId{2, 3}));
}

TEST_F(FencingTest, AWriterKeepsWhatItIsToldToKeep) {
  WriterOptions options = OptionsFor(Begin(std::nullopt));
  options.keep.newest = 3;
  AloneExchange alone;
  Writer writer(*storage_, options);
  for (const int64_t step : {1, 2, 3, 4, 5, 6}) {
    FakeState state(step, 0, 1);
    const SaveReport report = writer.Save(step, state.source(), alone);
    ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
  }
  EXPECT_THAT(*ListCheckpoints(*storage_), ElementsAre(StepId{1, 6}, StepId{1, 5}, StepId{1, 4}));
  const auto manifest = ReadManifest(*storage_, {1, 6});
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(manifest->parent, (StepId{1, 5}));
}

}  // namespace
}  // namespace dtrain::checkpoint::lineage_test
