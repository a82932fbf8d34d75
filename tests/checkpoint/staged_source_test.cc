// A snapshot that is written while its owner goes on: what is written is what was there when the
// snapshot was taken, whatever the sizes, the pool and the order of events.
#include "checkpoint/commit/staged_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tests/checkpoint/commit/staged_owner.h"

namespace dtrain::checkpoint::staged_source_test {
namespace {

using namespace staged_testing;  // NOLINT(google-build-using-namespace)

// The pool in segments; the stream of all tensors has eight.
class StagedSourceTest : public ::testing::TestWithParam<int> {
 protected:
  StagingPool pool_{static_cast<uint64_t>(GetParam()) * kSegmentBytes};
};
INSTANTIATE_TEST_SUITE_P(Pools, StagedSourceTest, ::testing::Values(0, 1, 2, 7, 8, 20));

TEST_P(StagedSourceTest, WhatIsWrittenIsWhatWasThereWhenItWasTaken) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Owner owner(seed);
    const std::vector<BytesStay> stay = DrawnStays(seed);
    StagedSource source(owner.Snapshot(stay), pool_);
    const std::vector<Bytes> written = WrittenBeside(
        source, seed, [&] { owner.Change(stay, BytesStay::kUntilStep); },
        [&] { owner.Change(stay, BytesStay::kUntilUpdate); });
    EXPECT_EQ(written, owner.before) << "seed " << seed;
    EXPECT_LE(pool_.bytes(), static_cast<uint64_t>(std::max(1, GetParam())) * kSegmentBytes);
  }
}

TEST_P(StagedSourceTest, BlocksThatWereMadeAheadAreTheOnesThatASaveTakes) {
  const uint64_t most = std::max<uint64_t>(1, static_cast<uint64_t>(GetParam())) * kSegmentBytes;
  pool_.Fill(3 * kSegmentBytes - 1);
  EXPECT_EQ(pool_.bytes(), std::min<uint64_t>(most, 3 * kSegmentBytes));
  std::vector<std::byte*> taken;
  for (uint64_t bytes = 0; bytes < pool_.bytes(); bytes += kSegmentBytes) {
    taken.push_back(pool_.Take());
  }
  EXPECT_THAT(taken, ::testing::Each(::testing::NotNull()));
  EXPECT_EQ(pool_.bytes(), taken.size() * kSegmentBytes) << "none had to be made";
  for (std::byte* const block : taken) {
    pool_.Return(block);
  }
  pool_.EndFilling();
  const uint64_t before = pool_.bytes();
  pool_.Fill(uint64_t{1} << 40);
  EXPECT_EQ(pool_.bytes(), before) << "a save has begun";
}

TEST_P(StagedSourceTest, FillingBesideASaveLeavesWhatIsWrittenRight) {
  const Owner owner(7);
  StagedSource source(owner.Snapshot(kAllLive), pool_);
  std::thread filler([&] { pool_.Fill(uint64_t{1} << 40); });
  std::vector<Bytes> written;
  std::thread writer([&] {
    source.CopyAhead();
    written = ReadAll(source, Order(7));
    source.Close();
  });
  source.LetUpdate();
  writer.join();
  filler.join();
  EXPECT_EQ(written, owner.before);
}

TEST_P(StagedSourceTest, SaysWhetherAnUpdateMayHaveToWaitForTheStorage) {
  const Owner owner(3);
  StagedSource source(owner.Snapshot(kAllLive), pool_);
  EXPECT_TRUE(source.HoldsUpdate());
  EXPECT_EQ(source.MayWait(), GetParam() < 8);
  std::thread writer([&] {
    ReadAll(source, Order(1));
    source.Close();
  });
  source.LetUpdate();
  EXPECT_FALSE(source.HoldsUpdate());  // Nothing is left to be copied.
  EXPECT_FALSE(source.MayWait());
  writer.join();
}

TEST_P(StagedSourceTest, AnUpdateWaitsForNothingThatAFullCopyHolds) {
  Owner owner(3);
  StagedSource source(owner.Snapshot(kAllLive), pool_);
  if (GetParam() < 8) {
    // The writer must read the rest first.
    std::atomic<bool> updated{false};
    std::thread trainer([&] {
      source.LetUpdate();
      owner.Change(kAllLive, BytesStay::kUntilUpdate);
      updated = true;
    });
    std::vector<Bytes> written(owner.tensors.size());
    ASSERT_TRUE(Read(source, owner.tensors.size(), 0, written[0]).ok());
    EXPECT_FALSE(updated.load());
    for (size_t i = 1; i < written.size(); ++i) {
      EXPECT_TRUE(Read(source, written.size(), i, written[i]).ok());
    }
    trainer.join();
    EXPECT_EQ(written, owner.before);
    return;
  }
  source.LetUpdate();  // Alone: nobody writes yet.
  owner.Change(kAllLive, BytesStay::kUntilUpdate);
  EXPECT_EQ(ReadAll(source, Order(9)), owner.before);
}

TEST_P(StagedSourceTest, ASaveThatIsGivenUpHoldsNobodyUp) {
  Owner owner(4);
  for (const bool copied : {false, true}) {
    StagedSource source(owner.Snapshot(kAllLive), pool_);
    std::thread trainer([&] { source.LetUpdate(); });
    if (copied) {
      source.CopyAhead();
    }
    Bytes some;
    EXPECT_EQ(source
                  .GiveModel(4,
                             [](absl::Span<const std::byte>) {
                               return absl::ResourceExhaustedError("the disk is full");
                             })
                  .code(),
              absl::StatusCode::kResourceExhausted);
    source.Close();
    trainer.join();
  }
  // All blocks are back: a later save has the whole pool.
  StagedSource next(owner.Snapshot(kAllLive), pool_);
  next.CopyAhead();
  EXPECT_EQ(ReadAll(next, Order(1)), owner.before);
  EXPECT_LE(pool_.bytes(), static_cast<uint64_t>(std::max(1, GetParam())) * kSegmentBytes);
}

TEST_P(StagedSourceTest, AnExceptionWhileItIsWrittenHoldsNobodyUp) {
  Owner owner(6);
  StagedSource source(owner.Snapshot(kAllLive), pool_);
  EXPECT_THROW(
      source
          .GiveModel(4, [](absl::Span<const std::byte>) -> absl::Status { throw std::bad_alloc(); })
          .IgnoreError(),
      std::bad_alloc);
  source.Close();
  source.LetUpdate();
}

// Records, and memory of the snapshot's own, that the thread that trains had no time to fill.
TEST_P(StagedSourceTest, TheWriterCompletesASnapshotOnceAndInOrder) {
  Owner owner(7);
  Bytes late(4);
  SpanSource snapshot = owner.Snapshot(kAllLive);
  snapshot.state.push_back({{"late", DType::kUInt8, {4}}, late});
  int calls = 0;
  snapshot.complete.emplace_back([&](SpanSource& source) {
    ++calls;
    std::fill(late.begin(), late.end(), std::byte{7});
    source.job.engine["first"] = 1;
    source.rank["first"] = true;
  });
  snapshot.complete.emplace_back([&](SpanSource& source) {
    ++calls;
    source.job.engine["second"] = source.job.engine.at("first").get<int>() + 1;
    source.model_files.emplace_back("config.json", "{}");
  });
  StagedSource source(std::move(snapshot), pool_);
  EXPECT_EQ(calls, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(source.ModelTensors()->size(), std::size(kSizes) / 2);
    EXPECT_EQ(calls, 2);
  }
  EXPECT_EQ(source.Job()->engine.at("second"), 2);
  EXPECT_EQ(source.Rank()->at("first"), true);
  EXPECT_EQ(source.ModelFiles()->size(), 1U);
  Bytes given;
  const auto sink = [&](absl::Span<const std::byte> part) {
    given.insert(given.end(), part.begin(), part.end());
    return absl::OkStatus();
  };
  EXPECT_TRUE(source.GiveState(source.StateTensors()->size() - 1, sink).ok());
  EXPECT_EQ(given, Bytes(4, std::byte{7}));
  source.Close();
}

class StagedFromDeviceTest : public ::testing::TestWithParam<int> {
 protected:
  const std::shared_ptr<LateDevice> device_ = std::make_shared<LateDevice>();
  StagingPool pool_{static_cast<uint64_t>(GetParam()) * kSegmentBytes, device_};
};
INSTANTIATE_TEST_SUITE_P(Pools, StagedFromDeviceTest, ::testing::Values(0, 2, 7, 8));

TEST_P(StagedFromDeviceTest, WhatIsWrittenIsWhatWasThereWhenItWasTaken) {
  for (const uint64_t seed : {1U, 2U, 3U, 6U}) {
    Owner owner(seed);
    const std::vector<BytesStay> stay = DrawnStays(seed);
    StagedSource source(OnDevice(owner.Snapshot(seed % 3 == 0 ? kAllLive : stay), seed % 3 == 0),
                        pool_);
    const auto step = [&] {
      if (seed % 3 != 0) {
        owner.Change(stay, BytesStay::kUntilStep);
      }
    };
    const std::vector<Bytes> written = WrittenBeside(source, seed, step, [&] {
      device_->Run();  // The device's next work comes behind the copies.
      owner.Change(seed % 3 == 0 ? kAllLive : stay, BytesStay::kUntilUpdate);
    });
    EXPECT_EQ(written, owner.before) << "seed " << seed;
    EXPECT_LE(pool_.bytes(), static_cast<uint64_t>(std::max(1, GetParam())) * kSegmentBytes);
  }
}

TEST_P(StagedFromDeviceTest, ACopyThatFailsFailsTheSaveAndHoldsNobodyUp) {
  Owner owner(4);
  device_->failure = absl::InternalError("the copy failed");
  {
    StagedSource source(OnDevice(owner.Snapshot(kAllLive), /*all=*/true), pool_);
    std::thread trainer([&] { source.LetUpdate(); });
    source.CopyAhead();
    Bytes some;
    const absl::Status read = Read(source, owner.tensors.size(), 4, some);
    EXPECT_EQ(read.message(), "the copy failed");
    source.Close();
    trainer.join();
  }
  device_->Run();  // A copy that was given up may still come.
  device_->failure = absl::OkStatus();
  StagedSource next(OnDevice(owner.Snapshot(kAllLive), /*all=*/true), pool_);
  next.CopyAhead();
  EXPECT_EQ(ReadAll(next, Order(1)), owner.before);
}

TEST(StagedFromDeviceWaitsTest, TheWriterAloneWaitsForTheDevice) {
  const auto device = std::make_shared<LateDevice>();
  StagingPool pool(8 * kSegmentBytes, device);
  Owner owner(3);
  StagedSource source(OnDevice(owner.Snapshot(kAllLive), /*all=*/true), pool);
  EXPECT_TRUE(source.HoldsUpdate());
  source.LetUpdate();
  EXPECT_FALSE(source.HoldsUpdate());
  EXPECT_EQ(device->waits.load(), 0);
  device->Run();
  owner.Change(kAllLive, BytesStay::kUntilUpdate);
  EXPECT_EQ(ReadAll(source, Order(9)), owner.before);
  EXPECT_GT(device->waits.load(), 0);
}

TEST(StagedFromDeviceWaitsTest, TrainingAsksWhileTheWriterMakesABlock) {
  const auto device = std::make_shared<LateDevice>();
  std::promise<void> begun;
  std::promise<void> asked;
  bool in_vain = false;
  device->before_block = [&, is_first = true]() mutable {
    if (std::exchange(is_first, false)) {
      begun.set_value();
      in_vain =
          asked.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::timeout;
    }
  };
  StagingPool pool(8 * kSegmentBytes, device);
  const Owner owner(3);
  StagedSource source(OnDevice(owner.Snapshot(kAllLive), /*all=*/true), pool);
  std::thread writer([&] { source.CopyAhead(); });
  begun.get_future().wait();
  EXPECT_TRUE(source.HoldsUpdate());
  EXPECT_FALSE(source.MayWait());
  asked.set_value();
  writer.join();
  EXPECT_FALSE(in_vain);
  EXPECT_EQ(ReadAll(source, Order(2)), owner.before);
}

TEST(StagedFromDeviceMemoryTest, NoBlockAtAllFailsTheSave) {
  const auto device = std::make_shared<LateDevice>();
  device->lacks_memory = true;
  StagingPool pool(8 * kSegmentBytes, device);
  const Owner owner(3);
  StagedSource source(OnDevice(owner.Snapshot(kAllLive), /*all=*/true), pool);
  source.CopyAhead();
  Bytes some;
  const absl::Status read = Read(source, owner.tensors.size(), 4, some);
  EXPECT_EQ(read.code(), absl::StatusCode::kResourceExhausted) << read;
  source.Close();
  source.LetUpdate();
}

TEST(StagedSourceFailTest, ASnapshotThatTurnsOutNotToBeWholeIsNotWritten) {
  StagingPool pool(kSegmentBytes);
  const Owner owner(3);
  StagedSource source(owner.Snapshot(kAllLive), pool);
  source.Fail(absl::OkStatus());
  EXPECT_TRUE(source.ModelTensors().ok());
  source.Fail(absl::DeadlineExceededError("the device hangs"));
  EXPECT_EQ(source.ModelTensors().status().message(), "the device hangs");
  source.Close();
}

TEST(StagedBytesTest, CountsWhatAnyPartOfTheStreamTakes) {
  Owner owner(5);
  std::vector<BytesStay> stay(std::size(kSizes), BytesStay::kWithSnapshot);
  stay[0] = BytesStay::kInGather;
  stay[7] = BytesStay::kUntilUpdate;
  stay[8] = BytesStay::kUntilStep;
  // Each part has segments of its own.
  EXPECT_EQ(StagedBytes(owner.Snapshot(stay)), kSegment + kSegment + 3 * kSegment);
}

}  // namespace
}  // namespace dtrain::checkpoint::staged_source_test
