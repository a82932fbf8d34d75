// A snapshot that is written while its owner goes on: what is written is what was there when the
// snapshot was taken, whatever the sizes, the pool and the order of events.
#include "checkpoint/commit/staged_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/numeric/prng.h"
#include "base/status.h"

namespace dtrain::checkpoint::staged_source_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kSegment = kSegmentBytes;
// Tensors within a segment, over several, ending and beginning at their borders, and empty.
constexpr size_t kSizes[] = {5,        kSegment - 5, 3, 0, 2 * kSegment + 1, 17, 17,
                             kSegment, 3 * kSegment, 1};

// The memory of an engine, and a snapshot of it.
struct Owner {
  std::vector<Bytes> tensors;
  std::vector<Bytes> before;  // Their contents before.

  explicit Owner(uint64_t seed) {
    SplitMix64 random(seed);
    for (const size_t size : kSizes) {
      Bytes& bytes = tensors.emplace_back(size);
      for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random.Next());
      }
    }
    before = tensors;
  }
  // The first half is the model's, the rest state; `stay` is that of tensor i.
  SpanSource Snapshot(const std::vector<BytesStay>& stay) const {
    SpanSource source;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto size = static_cast<int64_t>(tensors[i].size());
      auto& list = i < tensors.size() / 2 ? source.model : source.state;
      list.push_back({{std::to_string(i), DType::kUInt8, {size}}, tensors[i], stay[i]});
    }
    return source;
  }
  void Change(const std::vector<BytesStay>& stay, BytesStay which) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (stay[i] == which) {
        std::fill(tensors[i].begin(), tensors[i].end(), std::byte{0xee});
      }
    }
  }
};

absl::Status Read(StagedSource& source, size_t tensors, size_t tensor, Bytes& into) {
  const auto sink = [&](absl::Span<const std::byte> part) {
    into.insert(into.end(), part.begin(), part.end());
    return absl::OkStatus();
  };
  return tensor < tensors / 2 ? source.GiveModel(tensor, sink)
                              : source.GiveState(tensor - tensors / 2, sink);
}

// All tensors, in the order of `order`.
std::vector<Bytes> ReadAll(StagedSource& source, const std::vector<size_t>& order) {
  std::vector<Bytes> read(order.size());
  for (const size_t tensor : order) {
    EXPECT_TRUE(Read(source, order.size(), tensor, read[tensor]).ok());
  }
  return read;
}

std::vector<size_t> Order(uint64_t seed) {
  std::vector<size_t> order(std::size(kSizes));
  std::iota(order.begin(), order.end(), size_t{0});
  SplitMix64 random(seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.Next() % i]);
  }
  return order;
}

// The tensors as a thread writes them while this one lets `update` come.
std::vector<Bytes> WrittenBeside(StagedSource& source, uint64_t seed,
                                 absl::FunctionRef<void()> update) {
  std::vector<Bytes> written;
  std::thread writer([&] {
    if (seed % 2 == 0) {
      source.CopyAhead();
    }
    written = ReadAll(source, Order(seed));
    source.Close();
  });
  source.LetUpdate();
  update();
  writer.join();
  return written;
}

std::vector<BytesStay> DrawnStays(uint64_t seed) {
  std::vector<BytesStay> stays;
  SplitMix64 random(seed);
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    stays.push_back(static_cast<BytesStay>(random.Next() % 3));
  }
  return stays;
}

const std::vector<BytesStay> kAllLive(std::size(kSizes), BytesStay::kUntilUpdate);

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
    owner.Change(stay, BytesStay::kUntilStep);  // The next forward.
    const std::vector<Bytes> written =
        WrittenBeside(source, seed, [&] { owner.Change(stay, BytesStay::kUntilUpdate); });
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

// A device that copies when it is told to, or when somebody waits for it.
class LateDevice final : public StagingDevice {
 public:
  std::byte* MakeBlock() override {
    if (before_block) {
      before_block();
    }
    const std::lock_guard lock(mutex_);
    return lacks_memory ? nullptr
                        : blocks_.emplace_back(std::make_unique<std::byte[]>(kSegment)).get();
  }
  void FreeBlock(std::byte* /*block*/) override { Run(); }
  absl::Status Copy(absl::Span<const BlockPart> parts, std::byte* block) override {
    const std::lock_guard lock(mutex_);
    for (const BlockPart& part : parts) {
      queue_.push_back({block + part.at, part.from});
    }
    return failure;
  }
  absl::Status Await(const std::byte* /*block*/) override {
    ++waits;
    Run();
    return absl::OkStatus();
  }
  void Run() {
    const std::lock_guard lock(mutex_);
    for (const Queued& copy : queue_) {
      std::memcpy(copy.to, copy.from.data(), copy.from.size());
    }
    queue_.clear();
  }

  std::atomic<int> waits{0};
  absl::Status failure;  // What each copy gives.
  bool lacks_memory = false;
  std::function<void()> before_block;  // Called before each block is made.

 private:
  struct Queued {
    std::byte* to;
    absl::Span<const std::byte> from;
  };
  std::mutex mutex_;
  std::vector<Queued> queue_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

// Every tensor of `source` that stays until an update, or every second one, lies on the device.
SpanSource OnDevice(SpanSource source, bool all) {
  size_t index = 0;
  for (auto* const tensors : {&source.model, &source.state}) {
    for (NamedTensor& tensor : *tensors) {
      tensor.on_device = tensor.stay == BytesStay::kUntilUpdate && (all || index++ % 2 == 0);
    }
  }
  return source;
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
    if (seed % 3 != 0) {
      owner.Change(stay, BytesStay::kUntilStep);  // The next forward.
    }
    const std::vector<Bytes> written = WrittenBeside(source, seed, [&] {
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

TEST(LiveBytesTest, CountsWhatAnUpdateChanges) {
  Owner owner(5);
  std::vector<BytesStay> stay(std::size(kSizes), BytesStay::kWithSnapshot);
  stay[0] = BytesStay::kUntilUpdate;
  stay[7] = BytesStay::kUntilUpdate;
  stay[8] = BytesStay::kUntilStep;
  EXPECT_EQ(LiveBytes(owner.Snapshot(stay)), 5 + kSegment);
}

}  // namespace
}  // namespace dtrain::checkpoint::staged_source_test
