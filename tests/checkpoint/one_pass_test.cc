// A restore reads each block once and compares it on the way; a damaged checkpoint is given up for
// the one before it, whatever is damaged and whoever reads it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/restore/restore_agreement.h"
#include "checkpoint/restore/tensor_reads.h"
#include "checkpoint/storage/faulty_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/forwarding_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::one_pass_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(1);
constexpr int kSavedRanks = 2;

// Tensors of a FakeState.
constexpr size_t kScale = 10240;  // 10 MiB of weights a rank and 20 MiB of each state.
constexpr int64_t Elements(size_t scale) { return static_cast<int64_t>(16 * scale) * 32; }

// The state of a rank of a restored run: all weights of both savers, and an equal part of the
// states.
struct Restored {
  std::vector<std::byte> weights[kSavedRanks];
  std::vector<std::byte> master, moment;

  Restored(int world_size, size_t scale) {
    const auto elements = static_cast<size_t>(Elements(scale));
    for (auto& weight : weights) {
      weight.resize(elements * 2, std::byte{0x77});
    }
    master.resize(elements * kSavedRanks / static_cast<size_t>(world_size) * 4, std::byte{0x77});
    moment = master;
  }
};

// Asks for what `rank` of `world_size` needs.
absl::Status Ask(TensorReads& reads, int rank, int world_size, size_t scale, Restored& into) {
  const int64_t elements = Elements(scale);
  for (int saver = 0; saver < kSavedRanks; ++saver) {
    DT_RETURN_IF_ERROR(reads.AddModel({absl::StrCat("layers.", saver, ".weight"),
                                       DType::kBFloat16,
                                       {static_cast<int64_t>(16 * scale), 32}},
                                      0, absl::MakeSpan(into.weights[saver])));
  }
  for (const auto& [name, part] : {std::pair("master", absl::MakeSpan(into.master)),
                                   std::pair("exp_avg", absl::MakeSpan(into.moment))}) {
    // The states of both savers, one behind the other.
    const auto saver_bytes = static_cast<uint64_t>(elements) * 4;
    uint64_t at = static_cast<uint64_t>(rank) * part.size();
    absl::Span<std::byte> rest = part;
    while (!rest.empty()) {
      const uint64_t within = at % saver_bytes;
      const absl::Span<std::byte> here = rest.subspan(0, saver_bytes - within);
      DT_RETURN_IF_ERROR(reads.AddState(static_cast<int>(at / saver_bytes),
                                        {name, DType::kFloat32, {elements}}, within, here));
      at += here.size();
      rest.remove_prefix(here.size());
    }
  }
  static_cast<void>(world_size);
  return absl::OkStatus();
}

// DataLoss unless `restored` holds the bits of step `step`.
absl::Status Compare(const Restored& restored, int rank, int64_t step, size_t scale) {
  std::vector<std::byte> master;
  std::vector<std::byte> moment;
  for (int saver = 0; saver < kSavedRanks; ++saver) {
    FakeState state(step, saver, kSavedRanks, scale);
    const SpanSource& source = state.source();
    if (source.model[0].bytes != absl::MakeConstSpan(restored.weights[saver])) {
      return absl::DataLossError(absl::StrCat("weights of rank ", saver, " differ"));
    }
    master.insert(master.end(), source.state[0].bytes.begin(), source.state[0].bytes.end());
    moment.insert(moment.end(), source.state[1].bytes.begin(), source.state[1].bytes.end());
  }
  const size_t at = static_cast<size_t>(rank) * restored.master.size();
  return std::equal(restored.master.begin(), restored.master.end(),
                    master.begin() + static_cast<ptrdiff_t>(at)) &&
                 std::equal(restored.moment.begin(), restored.moment.end(),
                            moment.begin() + static_cast<ptrdiff_t>(at))
             ? absl::OkStatus()
             : absl::DataLossError("states differ");
}

struct Start {
  absl::Status status;
  int64_t step = -1;  // It goes on from there.
  int tries = 0;
  std::string damage;  // What was said of the first checkpoint that was given up.
};

// One rank's start, as a run makes it.
Start StartOne(Storage& storage, Exchange& exchange, size_t scale) {
  Start start;
  AttemptOptions options{.job = "job", .verify = Verify::kSizes};
  Restored into(exchange.world_size(), scale);
  start.status = [&]() -> absl::Status {
    while (true) {
      DT_ASSIGN_OR_RETURN(const Attempt attempt,
                          BeginAttempt(storage, exchange, options, kTimeout));
      if (attempt.checkpoint == nullptr) {
        return absl::NotFoundError("a fresh start");
      }
      ++start.tries;
      TensorReads reads(*attempt.checkpoint);
      absl::Status status = Ask(reads, exchange.rank(), exchange.world_size(), scale, into);
      status = status.ok() ? reads.Run() : status;
      DT_ASSIGN_OR_RETURN(const RestoreOutcome outcome,
                          AgreeOnRestore(*attempt.checkpoint, status, exchange, kTimeout));
      const StepId id = attempt.checkpoint->manifest().id;
      if (outcome.damage.ok()) {
        start.step = id.step;
        return Compare(into, exchange.rank(), id.step, scale);
      }
      if (start.damage.empty()) {
        start.damage = std::string(outcome.damage.message());
      }
      options.damaged[id] = {outcome.damage, attempt.epoch.epoch};
    }
  }();
  return start;
}

std::vector<Start> StartAll(Storage& storage, int world_size, size_t scale) {
  std::vector<Start> starts(static_cast<size_t>(world_size));
  RunRanks(world_size, [&](int rank, Exchange& exchange) {
    starts[static_cast<size_t>(rank)] = StartOne(storage, exchange, scale);
  });
  return starts;
}

// Steps 1 and 2 of two ranks.
class OnePassTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    storage_ = *OpenPosixStorage(folder_.path());
  }
  void Save(size_t scale) {
    const auto epoch = BeginEpoch(*storage_, "job", kSavedRanks, std::nullopt);
    DT_CHECK_OK(epoch.status());
    for (const int64_t step : {1, 2}) {
      DT_CHECK(SaveOnRanks(*storage_, OptionsFor(*epoch), kSavedRanks, step, scale)[0].durable());
    }
  }
  std::string Full(const std::string& file) const {
    return absl::StrCat(folder_.path(), "/step-000000000002.e1/", file);
  }
  static void Flip(const std::string& path, uint64_t offset, int bit) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file.good()) << path;
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(file.get() ^ (1 << bit));
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
    ASSERT_TRUE(file.good()) << path;
  }
  static uint64_t BytesOf(const std::string& path) {
    std::ifstream file(path, std::ios::ate | std::ios::binary);
    return static_cast<uint64_t>(file.tellg());
  }

  const std::vector<std::string> files_ = {"model/config.json",
                                           "model/model-00001-of-00002.safetensors",
                                           "model/model-00002-of-00002.safetensors",
                                           "model/model.safetensors.index.json",
                                           "state/rank-0-of-2.safetensors",
                                           "state/rank-1-of-2.safetensors"};
  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  std::unique_ptr<Storage> storage_;
};

TEST_F(OnePassTest, AnyNumberOfRanksGetsTheSavedBits) {
  Save(1024);
  for (const int world_size : {1, 2, 4}) {
    for (const Start& start : StartAll(*storage_, world_size, 1024)) {
      EXPECT_TRUE(start.status.ok()) << start.status;
      EXPECT_EQ(start.step, 2);
      EXPECT_EQ(start.tries, 1);
    }
  }
}

TEST_F(OnePassTest, AFlippedBitAnywhereInAnyFileIsFoundAndTheCheckpointBeforeIsUsed) {
  constexpr size_t kSmall = 16;
  Save(kSmall);
  SplitMix64 random(20261126);
  for (const std::string& file : files_) {
    const uint64_t bytes = BytesOf(Full(file));
    for (int i = 0; i < 8; ++i) {
      const uint64_t offset = i == 0 ? 0 : i == 1 ? bytes - 1 : random.Below(bytes);
      const int bit = static_cast<int>(random.Below(8));
      const int world_size = 1 << (i % 3);
      SCOPED_TRACE(absl::StrCat(file, " byte ", offset, " bit ", bit, " ranks ", world_size));
      Flip(Full(file), offset, bit);
      for (const Start& start : StartAll(*storage_, world_size, kSmall)) {
        EXPECT_TRUE(start.status.ok()) << start.status;
        EXPECT_EQ(start.step, 1);
        EXPECT_EQ(start.tries, 2);
        EXPECT_THAT(start.damage,
                    AllOf(HasSubstr(Full(file)), HasSubstr("bytes 0 to "), HasSubstr("CRC-32C")));
      }
      Flip(Full(file), offset, bit);
      ASSERT_FALSE(HasFailure());
      std::filesystem::remove_all(folder_.path() + "/epochs");  // The last start was another run.
      ASSERT_TRUE(BeginEpoch(*storage_, "job", kSavedRanks, std::nullopt).ok());
    }
  }
  EXPECT_EQ(StartAll(*storage_, 2, kSmall)[0].step, 2) << "undone damage must load again";
}

// Each block of large files, whether it has one tensor, several or none that is asked for.
TEST_F(OnePassTest, DamageInEveryBlockIsNamedByItsBytes) {
  Save(kScale);
  const auto checkpoint = Checkpoint::Open(*storage_, {1, 2}, Verify::kSizes);
  ASSERT_TRUE(checkpoint.ok());
  for (const std::string& file : {files_[1], files_[5]}) {
    const uint64_t bytes = BytesOf(Full(file));
    ASSERT_GT(bytes, 2 * kBlockBytes);
    for (uint64_t block = 0; block * kBlockBytes < bytes; ++block) {
      const uint64_t begin = block * kBlockBytes;
      const uint64_t end = std::min(bytes, begin + kBlockBytes);
      Flip(Full(file), (begin + end) / 2, 3);
      const auto damaged = Checkpoint::Open(*storage_, {1, 2}, Verify::kSizes);
      ASSERT_TRUE(damaged.ok()) << damaged.status();
      Restored into(1, kScale);
      TensorReads reads(**damaged);
      ASSERT_TRUE(Ask(reads, 0, 1, kScale, into).ok());
      const absl::Status status = reads.Run();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(Full(file)),
                        HasSubstr(absl::StrCat("bytes ", begin, " to ", end, " have CRC-32C"))));
      EXPECT_EQ((*damaged)->damage(), status);
      Flip(Full(file), (begin + end) / 2, 3);
    }
  }
}

TEST_F(OnePassTest, WhatNobodyNeedsIsReadAsWell) {
  Save(kScale);
  Flip(Full(files_[4]), 3 * kBlockBytes + 5, 0);
  std::vector<std::string> said(3);
  RunRanks(3, [&](int rank, Exchange& exchange) {
    auto opened = Checkpoint::Open(*storage_, {1, 2}, Verify::kSizes);
    DT_CHECK_OK(opened.status());
    const auto outcome = AgreeOnRestore(**opened, absl::OkStatus(), exchange, kTimeout);
    said[static_cast<size_t>(rank)] =
        std::string(outcome.ok() ? outcome->damage.message() : outcome.status().message());
  });
  for (const std::string& text : said) {
    EXPECT_THAT(text, AllOf(HasSubstr(Full(files_[4])), HasSubstr("bytes 12582912 to 16777216")));
  }
  Flip(Full(files_[4]), 3 * kBlockBytes + 5, 0);
  RunRanks(3, [&](int rank, Exchange& exchange) {
    auto opened = Checkpoint::Open(*storage_, {1, 2}, Verify::kSizes);
    DT_CHECK_OK(opened.status());
    const auto outcome = AgreeOnRestore(**opened, absl::OkStatus(), exchange, kTimeout);
    said[static_cast<size_t>(rank)] =
        std::string((outcome.ok() ? outcome->damage : outcome.status()).ToString());
  });
  EXPECT_THAT(said, ::testing::Each("OK"));
}

TEST_F(OnePassTest, MissingCutAndLongerFilesAreGivenUp) {
  constexpr size_t kSmall = 16;
  Save(kSmall);
  for (const std::string& file : files_) {
    const auto content = ReadFile(Full(file));
    ASSERT_TRUE(content.ok());
    for (const bool longer : {false, true}) {
      ASSERT_TRUE(WriteFileAtomic(Full(file),
                                  longer ? *content + "x" : content->substr(0, content->size() / 2))
                      .ok());
      EXPECT_EQ(StartAll(*storage_, 2, kSmall)[0].step, 1) << file;
    }
    ASSERT_EQ(unlink(Full(file).c_str()), 0);
    EXPECT_EQ(StartAll(*storage_, 2, kSmall)[1].step, 1) << file;
    ASSERT_TRUE(WriteFileAtomic(Full(file), *content).ok());
    std::filesystem::remove_all(folder_.path() + "/epochs");
    ASSERT_TRUE(BeginEpoch(*storage_, "job", kSavedRanks, std::nullopt).ok());
  }
}

TEST_F(OnePassTest, WhereNoneIsWholeTheStartIsRefusedWithTheDamageOfTheNewest) {
  constexpr size_t kSmall = 16;
  Save(kSmall);
  Flip(Full(files_[5]), 100, 1);
  Flip(absl::StrCat(folder_.path(), "/step-000000000001.e1/", files_[1]), 100, 1);
  const std::vector<Start> starts = StartAll(*storage_, 2, kSmall);
  EXPECT_EQ(starts[0].status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(starts[0].tries, 2);
  EXPECT_THAT(std::string(starts[0].status.message()),
              AllOf(HasSubstr("of 2 checkpoints there, none is whole"), HasSubstr(Full(files_[5])),
                    HasSubstr("--fresh")));
  EXPECT_EQ(starts[1].status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(*ListEpochs(*storage_), std::vector<int64_t>{1}) << "no attempt has begun";
  Flip(Full(files_[5]), 100, 1);
  EXPECT_EQ(StartAll(*storage_, 2, kSmall)[0].step, 2) << "it was brought back";
}

// The record of each try is the last one's, so a start that ends in between finds the same again.
TEST_F(OnePassTest, AStartThatEndsBehindTheDamageGoesOnFromTheCheckpointBefore) {
  constexpr size_t kSmall = 16;
  Save(kSmall);
  Flip(Full(files_[5]), 100, 1);
  EXPECT_EQ(StartAll(*storage_, 2, kSmall)[0].step, 1);
  const auto epochs = ListEpochs(*storage_);
  ASSERT_TRUE(epochs.ok());
  EXPECT_EQ(*epochs, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(ReadEpoch(*storage_, 3)->resumed_from, (StepId{1, 1}));
  Flip(Full(files_[5]), 100, 1);
  EXPECT_EQ(StartAll(*storage_, 2, kSmall)[0].step, 1) << "step 2 is no longer on the line";
  ASSERT_TRUE(storage_->RemoveFile(EpochPath(4)).ok());
  ASSERT_TRUE(storage_->RemoveFile(EpochPath(3)).ok());  // It died between the two records.
  Flip(Full(files_[5]), 100, 1);
  EXPECT_EQ(StartAll(*storage_, 2, kSmall)[0].step, 1);
}

TEST_F(OnePassTest, AnErrorOfAnySystemCallGivesTheOlderStepOrAnErrorAndNeverOtherBits) {
  constexpr size_t kSmall = 16;
  Save(kSmall);
  const auto files = OpenRealFileSystem(folder_.path());
  ASSERT_TRUE(files.ok());
  int older = 0;
  for (int64_t at = 0;; ++at) {
    FaultyFileSystem faulty(**files, {.at = at, .kind = FaultKind::kIoError});
    const auto storage = MakePosixStorage(faulty);
    AloneExchange alone;
    const Start start = StartOne(*storage, alone, kSmall);
    EXPECT_FALSE(absl::IsDataLoss(start.status)) << at << ": " << start.status;
    EXPECT_TRUE(!start.status.ok() || start.step == 1 || start.step == 2) << at;
    older += start.status.ok() && start.step == 1 ? 1 : 0;
    std::filesystem::remove_all(folder_.path() + "/epochs");
    ASSERT_TRUE(BeginEpoch(**&storage_, "job", kSavedRanks, std::nullopt).ok());
    if (faulty.calls() <= at) {
      EXPECT_TRUE(start.status.ok()) << start.status;
      EXPECT_EQ(start.step, 2);
      break;
    }
  }
  EXPECT_GT(older, 5) << "an unreadable block is damage";
}

// Counts what is read of each file.
class CountedFile final : public ReadableFile {
 public:
  CountedFile(std::unique_ptr<ReadableFile> file, std::atomic<uint64_t>& read)
      : file_(std::move(file)), read_(read) {}
  uint64_t bytes() const override { return file_->bytes(); }
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> into) const override {
    read_ += into.size();
    return file_->ReadAt(offset, into);
  }
  bool takes_small_reads() const override { return file_->takes_small_reads(); }

 private:
  const std::unique_ptr<ReadableFile> file_;
  std::atomic<uint64_t>& read_;
};

class CountedStorage final : public ForwardingStorage {
 public:
  explicit CountedStorage(Storage& inner) : ForwardingStorage(inner) {}
  uint64_t TakeBytesRead() { return read_.exchange(0); }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenFile(const std::string& path) override {
    DT_ASSIGN_OR_RETURN(auto file, inner_.OpenFile(path));
    return std::make_unique<CountedFile>(std::move(file), read_);
  }

 private:
  std::atomic<uint64_t> read_{0};
};

TEST_F(OnePassTest, EachByteIsReadOnceAndOfOtherRanksBlocksNothing) {
  Save(kScale);
  CountedStorage counted(*storage_);
  auto opened = Checkpoint::Open(counted, {1, 2}, Verify::kSizes);
  ASSERT_TRUE(opened.ok());
  counted.TakeBytesRead();
  Restored into(1, kScale);
  TensorReads reads(**opened);
  ASSERT_TRUE(Ask(reads, 0, 1, kScale, into).ok());
  reads.AddOtherFiles();
  EXPECT_EQ(counted.TakeBytesRead(), 0U) << "asking reads nothing";
  ASSERT_TRUE(reads.Run().ok());
  AloneExchange alone;
  ASSERT_TRUE(AgreeOnRestore(**opened, absl::OkStatus(), alone, kTimeout).ok());
  EXPECT_EQ(counted.TakeBytesRead(), (*opened)->manifest().data_bytes());
  EXPECT_TRUE(Compare(into, 0, 2, kScale).ok());

  // A third of one tensor: its blocks, and nothing else.
  auto again = Checkpoint::Open(counted, {1, 2}, Verify::kSizes);
  counted.TakeBytesRead();
  TensorReads third(**again);
  std::vector<std::byte> part(static_cast<size_t>(Elements(kScale)) * 4 / 3);
  ASSERT_TRUE(third
                  .AddState(1, {"master", DType::kFloat32, {Elements(kScale)}}, part.size(),
                            absl::MakeSpan(part))
                  .ok());
  ASSERT_TRUE(third.Run().ok());
  EXPECT_LE(counted.TakeBytesRead(), part.size() + 2 * kBlockBytes);
  FakeState state(2, 1, kSavedRanks, kScale);
  EXPECT_EQ(
      std::memcmp(part.data(), state.source().state[0].bytes.data() + part.size(), part.size()), 0);
}

TEST_F(OnePassTest, WrongRequestsAreNoDamage) {
  Save(16);
  auto opened = Checkpoint::Open(*storage_, {1, 2}, Verify::kSizes);
  ASSERT_TRUE(opened.ok());
  TensorReads reads(**opened);
  std::vector<std::byte> bytes(64);
  const auto into = absl::MakeSpan(bytes);
  EXPECT_EQ(reads.AddModel({"none", DType::kFloat32, {16}}, 0, into).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(reads.AddModel({"layers.0.bias", DType::kInt32, {32}}, 0, into).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(reads.AddModel({"layers.0.bias", DType::kFloat32, {32}}, 65, into).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(reads.AddModel({"layers.0.bias", DType::kFloat32, {32}}, UINT64_MAX, into).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(reads.AddModel({"layers.0.empty", DType::kInt64, {0, 3}}, 0, {}).ok());
  EXPECT_TRUE(reads.Run().ok());
  EXPECT_TRUE((*opened)->damage().ok());
  AloneExchange alone;
  const absl::Status mine = absl::NotFoundError("no such tensor");
  EXPECT_EQ(AgreeOnRestore(**opened, mine, alone, kTimeout).status(), mine);
}

TEST_F(OnePassTest, ARunTakesMemoryForAFewBlocksBesideWhatItFills) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps what was freed";
#endif
  Save(kScale);
  auto opened = Checkpoint::Open(*storage_, {1, 2}, Verify::kSizes);
  ASSERT_TRUE(opened.ok());
  Restored into(1, kScale);
  TensorReads reads(**opened);
  ASSERT_TRUE(Ask(reads, 0, 1, kScale, into).ok());
  std::ofstream("/proc/self/clear_refs") << "5";  // The peak begins anew.
  const uint64_t before = MemoryBytes("VmRSS:");
  ASSERT_TRUE(reads.Run().ok());
  EXPECT_LT(MemoryBytes("VmHWM:"), before + (uint64_t{24} << 20));
}

}  // namespace
}  // namespace dtrain::checkpoint::one_pass_test
