// Save and load in a real folder give the same state back, on one rank and on several.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/status.h"
#include "checkpoint/commit/save_attempt.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::save_load_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SaveLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto storage = OpenPosixStorage(folder_.path() + "/checkpoints");
    DT_CHECK_OK(storage.status());
    storage_ = *std::move(storage);
  }
  EpochRecord Begin(int world_size = 1) {
    AloneExchange alone;
    auto latest = FindLatest(*storage_);
    std::optional<StepId> from;
    if (latest.ok()) {
      from = (*latest)->manifest().id;
    }
    auto epoch = BeginEpoch(*storage_, "job", world_size, from);
    DT_CHECK_OK(epoch.status());
    return *epoch;
  }
  std::string Names(const std::string& folder) {
    const auto entries = storage_->List(folder);
    DT_CHECK_OK(entries.status());
    std::string names;
    for (const auto& entry : *entries) {
      absl::StrAppend(&names, names.empty() ? "" : " ", entry.name);
    }
    return names;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Storage> storage_;
};

// Notes when files are created, finished and published.
class NotingStorage final : public ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;
  absl::StatusOr<std::unique_ptr<WritableFile>> CreateFile(const std::string& path, uint64_t bytes,
                                                           Access access) override {
    DT_ASSIGN_OR_RETURN(auto file, inner_.CreateFile(path, bytes, access));
    events.push_back("create " + path);
    return std::make_unique<File>(std::move(file), "finish " + path, events);
  }
  absl::Status Publish(const std::string& path, absl::string_view content) override {
    events.push_back("publish " + path);
    return inner_.Publish(path, content);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    events.push_back("sync " + path);
    return inner_.SyncDirectory(path);
  }
  size_t At(const std::string& event) const {
    return static_cast<size_t>(std::find(events.begin(), events.end(), event) - events.begin());
  }
  std::vector<std::string> events;

 private:
  class File final : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> inner, std::string name, std::vector<std::string>& events)
        : inner_(std::move(inner)), name_(std::move(name)), events_(events) {}
    absl::Status Append(absl::Span<const std::byte> data) override { return inner_->Append(data); }
    absl::Status Finish() override {
      events_.push_back(name_);
      return inner_->Finish();
    }

   private:
    const std::unique_ptr<WritableFile> inner_;
    const std::string name_;
    std::vector<std::string>& events_;
  };
};

// The disk has work while the next file's first bytes are on their way.
TEST_F(SaveLoadTest, AFileIsMadeDurableWhileTheNextOneIsWrittenAndAllBeforeTheCommit) {
  NotingStorage storage(*storage_);
  const auto reports = SaveOnRanks(storage, OptionsFor(Begin()), 1, 12);
  ASSERT_EQ(reports[0].outcome, SaveOutcome::kCommitted) << reports[0].status;
  const std::string folder = "step-000000000012.e1/";
  const size_t commit = storage.At("publish " + folder + "MANIFEST.json");
  ASSERT_LT(commit, storage.events.size());
  for (const char* const name :
       {"model/model.safetensors", "model/config.json", "state/rank-0-of-1.safetensors"}) {
    EXPECT_LT(storage.At(absl::StrCat("finish ", folder, name)), commit) << name;
  }
  EXPECT_LT(storage.At("create " + folder + "state/rank-0-of-1.safetensors"),
            storage.At("finish " + folder + "model/model.safetensors"));
  // The names of all files are durable before the last one's bytes are.
  const size_t last = storage.At("finish " + folder + "state/rank-0-of-1.safetensors");
  EXPECT_LT(storage.At("create " + folder + "model/config.json"),
            storage.At("sync " + folder + "model"));
  EXPECT_LT(storage.At("sync " + folder + "model"), last);
  EXPECT_LT(storage.At("sync " + folder + "state"), last);
}

TEST_F(SaveLoadTest, TheIndexIsWrittenBesideTheLastFileAndIsDurableBeforeTheCommit) {
  NotingStorage storage(*storage_);
  WriterOptions options = OptionsFor(Begin());
  options.shard_bytes_max = 1;  // A file for each tensor.
  const auto reports = SaveOnRanks(storage, options, 1, 12);
  ASSERT_EQ(reports[0].outcome, SaveOutcome::kCommitted) << reports[0].status;
  const std::string folder = "step-000000000012.e1/";
  const std::string index = folder + "model/model.safetensors.index.json";
  EXPECT_LT(storage.At("create " + index),
            storage.At("finish " + folder + "state/rank-0-of-1.safetensors"));
  const auto synced =
      std::find(storage.events.rbegin(), storage.events.rend(), "sync " + folder + "model");
  ASSERT_NE(synced, storage.events.rend());
  const auto last_sync = static_cast<size_t>(storage.events.rend() - synced) - 1;
  EXPECT_LT(storage.At("finish " + index), last_sync);
  EXPECT_LT(last_sync, storage.At("publish " + folder + "MANIFEST.json"));
  EXPECT_TRUE(FakeState(12, 0, 1).Compare(**FindLatest(*storage_)).ok());
}

TEST_F(SaveLoadTest, OneRankReadsBackEveryBit) {
  const auto reports = SaveOnRanks(*storage_, OptionsFor(Begin()), 1, 1200);
  ASSERT_EQ(reports[0].outcome, SaveOutcome::kCommitted) << reports[0].status;
  EXPECT_EQ(Names(""), "epochs latest step-000000001200.e1");
  EXPECT_EQ(Names("step-000000001200.e1"), "MANIFEST.json model state");
  EXPECT_EQ(Names("step-000000001200.e1/model"), "config.json model.safetensors");
  EXPECT_EQ(ReadAll(*storage_, "latest"), "step-000000001200.e1\n");
  auto latest = FindLatest(*storage_);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ((*latest)->manifest().id, (StepId{1, 1200}));
  const FakeState expected(1200, 0, 1);
  EXPECT_TRUE(expected.Compare(**latest).ok()) << expected.Compare(**latest);
}

TEST_F(SaveLoadTest, SeveralRanksWriteOneModelWithAnIndex) {
  for (const int world_size : {2, 3}) {
    const int64_t step = 10 * world_size;
    const auto reports = SaveOnRanks(*storage_, OptionsFor(Begin(world_size)), world_size, step);
    for (const SaveReport& report : reports) {
      ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
      EXPECT_EQ(report.bytes, reports[0].bytes);
    }
    auto latest = FindLatest(*storage_);
    ASSERT_TRUE(latest.ok()) << latest.status();
    for (int rank = 0; rank < world_size; ++rank) {
      const FakeState expected(step, rank, world_size);
      EXPECT_TRUE(expected.Compare(**latest).ok()) << expected.Compare(**latest);
    }
    EXPECT_EQ((*latest)->ModelTensors().size(), 4U * static_cast<size_t>(world_size));
    const auto index = ParseJson(ReadAll(*storage_, (*latest)->manifest().id.DirectoryName() +
                                                        "/model/model.safetensors.index.json"),
                                 "index");
    ASSERT_TRUE(index.ok());
    EXPECT_EQ((*index)["weight_map"]["layers.1.bias"],
              absl::StrCat("model-00002-of-0000", world_size, ".safetensors"));
    EXPECT_EQ((*index)["metadata"]["total_size"], world_size * (16 * 32 * 2 + 32 * 4 + 4));
    EXPECT_EQ((*index)["metadata"]["total_parameters"], world_size * (16 * 32 + 32 + 1));
  }
}

TEST_F(SaveLoadTest, AModelAboveTheShardLimitIsSplit) {
  WriterOptions options = OptionsFor(Begin());
  options.shard_bytes_max = 1100;
  const auto reports = SaveOnRanks(*storage_, options, 1, 5);
  ASSERT_EQ(reports[0].outcome, SaveOutcome::kCommitted) << reports[0].status;
  EXPECT_EQ(Names("step-000000000005.e1/model"),
            "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors "
            "model.safetensors.index.json");
  auto latest = FindLatest(*storage_);
  ASSERT_TRUE(latest.ok());
  const FakeState expected(5, 0, 1);
  EXPECT_TRUE(expected.Compare(**latest).ok()) << expected.Compare(**latest);
}

TEST(SplitIntoShardsTest, AFileTakesTensorsUpToItsLimitAndALargerOneStandsAlone) {
  const auto tensor = [](int64_t elements) { return TensorSpec{"t", DType::kFloat32, {elements}}; };
  using Shards = std::vector<std::vector<size_t>>;
  EXPECT_EQ(SplitIntoShards({tensor(10), tensor(15)}, 100), (Shards{{0, 1}})) << "100 bytes";
  EXPECT_EQ(SplitIntoShards({tensor(10), tensor(16)}, 100), (Shards{{0}, {1}})) << "104 bytes";
  EXPECT_EQ(SplitIntoShards({tensor(9), tensor(50), tensor(5), tensor(0), tensor(20)}, 100),
            (Shards{{0}, {1}, {2, 3, 4}}));
  EXPECT_EQ(SplitIntoShards({}, 100), Shards());
}

TEST_F(SaveLoadTest, ARanksRecordIsASmallObjectOrTheSaveIsGivenUpByItsName) {
  // The longest text that fits into the limit with its name, quotes and braces.
  constexpr size_t kTextMax = (1 << 20) - 11;
  const WriterOptions options = OptionsFor(Begin());
  for (const Json& record : {Json::array({1}), Json{{"text", std::string(1 << 20, 'x')}}}) {
    FakeState state(3, 0, 1);
    state.source().rank = record;
    AloneExchange alone;
    Writer writer(*storage_, options);
    const SaveReport report = writer.Save(3, state.source(), alone);
    EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("rank 0: a rank's state must be a JSON object of at most 1048576 bytes"));
  }
  FakeState state(3, 0, 1);
  state.source().rank = {{"text", std::string(kTextMax, 'x')}};
  AloneExchange alone;
  Writer writer(*storage_, options);
  const SaveReport report = writer.Save(3, state.source(), alone);
  EXPECT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
}

TEST_F(SaveLoadTest, TensorsLargerThanABlockReadBackEveryBit) {
  constexpr size_t kScale = 5000;  // Files of 5 and 10 MB: several blocks of 4 MiB, none aligned.
  const auto reports = SaveOnRanks(*storage_, OptionsFor(Begin()), 1, 7, kScale);
  ASSERT_EQ(reports[0].outcome, SaveOutcome::kCommitted) << reports[0].status;
  auto latest = FindLatest(*storage_);
  ASSERT_TRUE(latest.ok()) << latest.status();
  const FakeState expected(7, 0, 1, kScale);
  EXPECT_TRUE(expected.Compare(**latest).ok()) << expected.Compare(**latest);
  EXPECT_GT((*latest)->manifest().FindFile(StatePath(0, 1))->checksum.crc32c.size(), 4U);
}

TEST_F(SaveLoadTest, TheSameStepIsSavedOnce) {
  const EpochRecord epoch = Begin();
  SaveOnRanks(*storage_, OptionsFor(epoch), 1, 3);
  const auto again = SaveOnRanks(*storage_, OptionsFor(epoch), 1, 3);
  EXPECT_EQ(again[0].outcome, SaveOutcome::kAlreadyCommitted) << again[0].status;
}

// A run may save before its first step, and step 999,999,999,999 is the last with a folder name.
TEST_F(SaveLoadTest, TheFirstAndTheLastStepAreSavedAndNoneBeyond) {
  const EpochRecord epoch = Begin();
  for (const int64_t step : {int64_t{0}, kStepMax}) {
    const SaveReport report = SaveOnRanks(*storage_, OptionsFor(epoch), 1, step)[0];
    EXPECT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
    auto latest = FindLatest(*storage_);
    ASSERT_TRUE(latest.ok()) << latest.status();
    EXPECT_EQ((*latest)->manifest().id, (StepId{epoch.epoch, step}));
    const absl::Status same = FakeState(step, 0, 1).Compare(**latest);
    EXPECT_TRUE(same.ok()) << same;
  }
  for (const int64_t step : {int64_t{-1}, kStepMax + 1}) {
    const SaveReport report = SaveOnRanks(*storage_, OptionsFor(epoch), 1, step)[0];
    EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
    EXPECT_EQ(report.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("cannot be saved; steps go from 0 to 999999999999"));
  }
}

TEST_F(SaveLoadTest, StateIsItsOwnersAloneAndTheModelEveryones) {
  SaveOnRanks(*storage_, OptionsFor(Begin()), 1, 3);
  const std::string base = folder_.path() + "/checkpoints/step-000000000003.e1/";
  struct stat info {};
  ASSERT_EQ(stat((base + "state/rank-0-of-1.safetensors").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  ASSERT_EQ(stat((base + "model/model.safetensors").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0077U, 0044U);
}

// Other programs read the files in model/, and the tool lists checkpoints of another user's run.
TEST_F(SaveLoadTest, EveryoneMayReadTheSmallFilesAndTheManifest) {
  SaveOnRanks(*storage_, OptionsFor(Begin(2)), 2, 3);
  const std::string base = folder_.path() + "/checkpoints/step-000000000003.e1/";
  for (const char* const name : {"model/config.json", "model/model.safetensors.index.json",
                                 "model/model-00002-of-00002.safetensors", "MANIFEST.json"}) {
    struct stat info {};
    ASSERT_EQ(stat((base + name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777U, 0644U) << name;
  }
  struct stat info {};
  ASSERT_EQ(stat((base + "state/rank-1-of-2.safetensors").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
}

TEST_F(SaveLoadTest, TheReportAndTheEventSayBytesOnDiskAndSeconds) {
  WriterOptions options = OptionsFor(Begin(2));
  std::vector<DurableEvent> events;
  options.on_durable = [&](const DurableEvent& event) { events.push_back(event); };
  const absl::Time begin = absl::Now();
  const std::vector<SaveReport> reports = SaveOnRanks(*storage_, options, 2, 3, /*scale=*/64);
  const absl::Time end = absl::Now();
  uint64_t bytes = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(
           folder_.path() + "/checkpoints/step-000000000003.e1")) {
    bytes += file.is_regular_file() ? file.file_size() : 0;
  }
  ASSERT_EQ(events.size(), 1U) << "rank 0's alone";
  EXPECT_EQ(events[0].id, (StepId{1, 3}));
  EXPECT_EQ(events[0].bytes, bytes);
  for (const double seconds : {events[0].seconds, reports[0].seconds, reports[1].seconds}) {
    EXPECT_GT(seconds, 1e-6);
    EXPECT_LE(seconds, absl::ToDoubleSeconds(end - begin));
  }
  for (const SaveReport& report : reports) {
    EXPECT_EQ(report.bytes, bytes);
    EXPECT_EQ(report.id, (StepId{1, 3}));
  }
  const auto manifest = ReadManifest(*storage_, {1, 3});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_GE(manifest->created_unix_ms, absl::ToUnixMillis(begin));
  EXPECT_LE(manifest->created_unix_ms, absl::ToUnixMillis(end));
  EXPECT_EQ(manifest->job, "job");
  EXPECT_EQ(manifest->world_size, 2);
  EXPECT_EQ(manifest->parent, std::nullopt);
}

TEST_F(SaveLoadTest, TensorsAreListedByRankInTheirOrder) {
  SaveOnRanks(*storage_, OptionsFor(Begin(2)), 2, 3);
  auto latest = FindLatest(*storage_);
  ASSERT_TRUE(latest.ok()) << latest.status();
  for (const int rank : {0, 1}) {
    std::vector<std::string> names;
    for (const TensorEntry& tensor : (*latest)->StateTensors(rank)) {
      names.push_back(tensor.name);
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAre("master", "exp_avg", "rng"));
  }
  EXPECT_THAT((*latest)->StateTensors(2), ::testing::IsEmpty()) << "there is no such rank";
  EXPECT_TRUE(absl::IsNotFound((*latest)->ReadModelFile("nothing.json").status()));
}

TEST_F(SaveLoadTest, AnotherWorldSizeReadsModelAndStateAndAnotherLayoutIsRefused) {
  SaveOnRanks(*storage_, OptionsFor(Begin(2)), 2, 3);
  auto latest = FindLatest(*storage_);
  ASSERT_TRUE(latest.ok());
  EXPECT_TRUE((*latest)->CheckLayout("0123456789abcdef").ok());
  const absl::Status status = (*latest)->CheckLayout("other");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameter layout"));
  std::vector<std::byte> bias(128);
  EXPECT_TRUE(
      ReadModelTensor(**latest, {"layers.1.bias", DType::kFloat32, {32}}, absl::MakeSpan(bias))
          .ok());
}

TEST_F(SaveLoadTest, AWrongTensorIsRefusedByName) {
  SaveOnRanks(*storage_, OptionsFor(Begin()), 1, 3);
  auto latest = FindLatest(*storage_);
  ASSERT_TRUE(latest.ok());
  std::vector<std::byte> bytes(128);
  const auto read = [&](const TensorSpec& spec) {
    return ReadModelTensor(**latest, spec, absl::MakeSpan(bytes));
  };
  EXPECT_EQ(read({"nothing", DType::kFloat32, {32}}).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(read({"layers.0.bias", DType::kFloat32, {4, 8}}).message()),
              HasSubstr("tensor layers.0.bias is F32 [32]; the program has F32 [4, 8]"));
  EXPECT_THAT(std::string(read({"layers.0.bias", DType::kInt32, {32}}).message()),
              HasSubstr("give the program the precision of the checkpoint"));
}

TEST_F(SaveLoadTest, BeginAttemptGivesAllRanksTheSameEpochAndCheckpoint) {
  SaveOnRanks(*storage_, OptionsFor(Begin(2)), 2, 8);
  std::vector<int64_t> epochs(2);
  std::vector<absl::Status> statuses(2);
  RunRanks(2, [&](int rank, Exchange& exchange) {
    auto attempt = BeginAttempt(*storage_, exchange, {.job = "job"}, absl::Minutes(1));
    if (!attempt.ok() || attempt->checkpoint == nullptr) {
      statuses[static_cast<size_t>(rank)] = attempt.status();
      return;
    }
    epochs[static_cast<size_t>(rank)] = attempt->epoch.epoch;
    statuses[static_cast<size_t>(rank)] = FakeState(8, rank, 2).Compare(*attempt->checkpoint);
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
  EXPECT_TRUE(statuses[1].ok()) << statuses[1];
  EXPECT_THAT(epochs, ElementsAre(2, 2));
}

// Where its run directory is lost, a run has a new one with another id.
TEST_F(SaveLoadTest, ARunThatGoesOnKeepsItsId) {
  SaveOnRanks(*storage_, OptionsFor(Begin()), 1, 8);
  AloneExchange alone;
  const auto attempt =
      BeginAttempt(*storage_, alone, {.job = "of the new run directory"}, absl::Minutes(1));
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_EQ(attempt->epoch.job, "job");
  EXPECT_EQ(ReadEpoch(*storage_, 2)->job, "job");
}

// Rank 0 of two, whom nobody hears.
class MuteExchange final : public Exchange {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 2; }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view, Deadline) override {
    return absl::UnavailableError("nobody answers");
  }
  absl::StatusOr<std::string> Broadcast(absl::string_view, Deadline) override {
    return absl::UnavailableError("nobody hears");
  }
};

TEST_F(SaveLoadTest, AnAttemptOrASaveOfWhichTheOthersDoNotHearHasNotBegun) {
  MuteExchange mute;
  const absl::Status attempt =
      BeginAttempt(*storage_, mute, {.job = "job"}, absl::Minutes(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(attempt)) << attempt;
  FakeState state(3, 0, 2);
  Writer writer(*storage_, OptionsFor(Begin(2)));
  const SaveReport report = writer.Save(3, state.source(), mute);
  EXPECT_EQ(report.outcome, SaveOutcome::kAbandoned);
  EXPECT_FALSE(report.status.ok());
  EXPECT_THAT(*ListCheckpoints(*storage_), ::testing::IsEmpty());
}

// What a rank says from its message `first_lost` on, counted from 1, reaches nobody.
class CutOffExchange final : public Exchange {
 public:
  CutOffExchange(Exchange& inner, int first_lost) : inner_(inner), first_lost_(first_lost) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view mine,
                                                  Deadline deadline) override {
    if (++gathers_ >= first_lost_) {
      return absl::UnavailableError("lost on purpose");
    }
    return inner_.Gather(mine, deadline);
  }
  absl::StatusOr<std::string> Broadcast(absl::string_view text, Deadline deadline) override {
    return inner_.Broadcast(text, deadline);
  }
  int gathers() const { return gathers_; }

 private:
  Exchange& inner_;
  const int first_lost_;
  int gathers_ = 0;
};

// The second message reports a rank's files, the third says that they are durable.
TEST_F(SaveLoadTest, NothingIsCommittedBeforeEveryRankHasSaidThatItsFilesAreDurable) {
  for (const int first_lost : {2, 3}) {
    const EpochRecord epoch = Begin(2);
    WriterOptions options = OptionsFor(epoch);
    options.exchange_timeout = absl::Milliseconds(300);
    std::vector<SaveReport> reports(2);
    RunRanks(2, [&](int rank, Exchange& exchange) {
      FakeState state(5, rank, 2);
      CutOffExchange cut_off(exchange, rank == 1 ? first_lost : 100);
      Writer writer(*storage_, options);
      reports[static_cast<size_t>(rank)] = writer.Save(5, state.source(), cut_off);
      EXPECT_LE(cut_off.gathers(), rank == 1 ? first_lost : 3) << "it talks on without an answer";
    });
    EXPECT_EQ(reports[0].outcome, SaveOutcome::kAbandoned) << reports[0].status;
    EXPECT_THAT(std::string(reports[0].status.message()), HasSubstr("rank 1 did not report"));
    EXPECT_FALSE(reports[1].durable());
    EXPECT_THAT(*ListCheckpoints(*storage_), ::testing::IsEmpty());
    for (const SaveReport& report : SaveOnRanks(*storage_, OptionsFor(epoch), 2, 5)) {
      EXPECT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
    }
    EXPECT_TRUE(RemoveTree(*storage_, StepId{epoch.epoch, 5}.DirectoryName()).ok());
  }
}

TEST_F(SaveLoadTest, AFreshStartDoesNotResumeAndKeepsTheOldRun) {
  SaveOnRanks(*storage_, OptionsFor(Begin()), 1, 8);
  AloneExchange alone;
  auto attempt = BeginAttempt(*storage_, alone, {.job = "job", .fresh = true}, absl::Minutes(1));
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_EQ(attempt->checkpoint, nullptr);
  EXPECT_TRUE(absl::IsNotFound(FindLatest(*storage_).status()));
  for (const int64_t step : {1, 2, 3, 4, 5}) {
    SaveOnRanks(*storage_, OptionsFor(attempt->epoch), 1, step);
  }
  const auto ids = ListCheckpoints(*storage_);
  ASSERT_TRUE(ids.ok());
  EXPECT_THAT(*ids, ElementsAre(StepId{2, 5}, StepId{2, 4}, StepId{2, 3}, StepId{1, 8}));
}

TEST_F(SaveLoadTest, TheDurableEventNamesTheCheckpoint) {
  WriterOptions options = OptionsFor(Begin());
  std::vector<std::string> events;
  options.on_durable = [&](const DurableEvent& event) { events.push_back(event.path); };
  options.verify_after_write = true;
  SaveOnRanks(*storage_, options, 1, 8);
  EXPECT_THAT(events, ElementsAre(folder_.path() + "/checkpoints/step-000000000008.e1"));
}

}  // namespace
}  // namespace dtrain::checkpoint::save_load_test
