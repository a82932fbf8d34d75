// Tensors that are whole only while they are gathered (ZeRO stage 3): what is written is what they
// held then, and copies of them are within the pool, whatever its size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/numeric/prng.h"
#include "checkpoint/commit/staged_source.h"
#include "tests/checkpoint/commit/staged_owner.h"

namespace dtrain::checkpoint::gathered_source_test {
namespace {

using namespace staged_testing;  // NOLINT(google-build-using-namespace)

// Stays of a snapshot in which some tensors of the model are gathered.
std::vector<BytesStay> GatheredStays(uint64_t seed) {
  std::vector<BytesStay> stays = DrawnStays(seed);
  SplitMix64 random(seed + 100);
  for (size_t i = 0; i < stays.size() / 2; ++i) {
    stays[i] = random.Next() % 4 == 0 ? stays[i] : BytesStay::kInGather;
  }
  return stays;
}

// Gathers in turn what `stay` says: each tensor has its bytes only meanwhile.
absl::Status GatherAll(StagedSource& source, Owner& owner, const std::vector<BytesStay>& stay,
                       bool may_wait) {
  absl::Status status;
  for (size_t i = 0; i < stay.size() / 2; ++i) {
    if (stay[i] != BytesStay::kInGather) {
      continue;
    }
    std::copy(owner.before[i].begin(), owner.before[i].end(), owner.tensors[i].begin());
    status.Update(source.TakeGathered(i, may_wait));
    std::fill(owner.tensors[i].begin(), owner.tensors[i].end(), std::byte{0xcc});
  }
  source.EndGathers(status);
  return status;
}

// In the order of the writer: what is gathered later cannot be written earlier.
std::vector<size_t> InOrder() {
  std::vector<size_t> order(std::size(kSizes));
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

class GatheredTest : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  uint64_t segments() const { return static_cast<uint64_t>(std::max(1, std::get<0>(GetParam()))); }
  bool from_device() const { return std::get<1>(GetParam()); }
  SpanSource Snapshot(const Owner& owner, const std::vector<BytesStay>& stay) const {
    return from_device() ? OnDevice(owner.Snapshot(stay), /*all=*/true) : owner.Snapshot(stay);
  }

  const std::shared_ptr<LateDevice> device_ = std::make_shared<LateDevice>();
  StagingPool pool_{segments() * kSegmentBytes, from_device() ? device_ : nullptr};
};
INSTANTIATE_TEST_SUITE_P(Pools, GatheredTest,
                         ::testing::Combine(::testing::Values(1, 2, 4, 20), ::testing::Bool()));

// Training is held up where the pool is smaller than what is gathered, and nothing is copied beside
// the pool.
TEST_P(GatheredTest, WhatIsGatheredPassesThroughThePoolInWaves) {
  for (const uint64_t seed : {1U, 2U, 3U, 4U}) {
    Owner owner(seed);
    const std::vector<BytesStay> stay = GatheredStays(seed);
    owner.Change(stay, BytesStay::kInGather);
    StagedSource source(Snapshot(owner, stay), pool_);
    const bool in_waves = source.MayWaitAtStart();
    std::vector<Bytes> written;
    const auto write = [&] {
      source.CopyAhead();
      written = ReadAll(source, InOrder());
      source.Close();
    };
    std::thread writer;
    if (in_waves) {
      writer = std::thread(write);
    }
    EXPECT_TRUE(GatherAll(source, owner, stay, in_waves).ok());
    if (!in_waves) {
      source.LetStep(/*may_wait=*/false);  // It has room, so that it need not wait.
      owner.Change(stay, BytesStay::kUntilStep);
      writer = std::thread(write);
    }
    source.LetStep(/*may_wait=*/true);
    owner.Change(stay, BytesStay::kUntilStep);
    source.LetUpdate();
    device_->Run();
    owner.Change(stay, BytesStay::kUntilUpdate);
    writer.join();
    EXPECT_EQ(written, owner.before) << "seed " << seed;
    EXPECT_LE(pool_.bytes(), segments() * kSegmentBytes);
  }
}

TEST_P(GatheredTest, ASaveThatIsGivenUpHoldsNoGatherUp) {
  Owner owner(2);
  std::vector<BytesStay> stay(std::size(kSizes), BytesStay::kUntilUpdate);
  std::fill_n(stay.begin(), stay.size() / 2, BytesStay::kInGather);
  {
    StagedSource source(Snapshot(owner, stay), pool_);
    std::thread writer([&] {
      Bytes first;
      EXPECT_TRUE(Read(source, stay.size(), 0, first).ok());
      source.Close();  // The disk is full, say.
    });
    EXPECT_TRUE(GatherAll(source, owner, stay, /*may_wait=*/true).ok());
    source.LetStep(/*may_wait=*/true);
    source.LetUpdate();
    writer.join();
  }
  std::vector<std::byte*> blocks;
  for (uint64_t i = 0; i < segments(); ++i) {
    blocks.push_back(pool_.Take());
  }
  EXPECT_THAT(blocks, ::testing::Each(::testing::NotNull())) << "all blocks are back";
  for (std::byte* const block : blocks) {
    pool_.Return(block);
  }
}

TEST_P(GatheredTest, AGatherThatFailsFailsTheSave) {
  Owner owner(3);
  std::vector<BytesStay> stay(std::size(kSizes), BytesStay::kUntilUpdate);
  stay[2] = stay[4] = BytesStay::kInGather;
  StagedSource source(Snapshot(owner, stay), pool_);
  absl::Status written;
  std::thread writer([&] {
    Bytes some;
    for (size_t i = 0; i < stay.size() && written.ok(); ++i) {
      written = Read(source, stay.size(), i, some);
    }
    source.Close();
  });
  EXPECT_TRUE(source.TakeGathered(2, /*may_wait=*/true).ok());
  source.EndGathers(absl::UnavailableError("rank 1 is gone"));
  source.LetStep(/*may_wait=*/true);
  source.LetUpdate();
  writer.join();
  EXPECT_EQ(written.message(), "rank 1 is gone");
}

// One tensor is gathered, and there is no memory for any block.
class GatheredMemoryTest : public ::testing::Test {
 protected:
  static std::shared_ptr<LateDevice> Device() {
    auto device = std::make_shared<LateDevice>();
    device->lacks_memory = true;
    return device;
  }
  static std::vector<BytesStay> Stays() {
    std::vector<BytesStay> stays(std::size(kSizes), BytesStay::kUntilUpdate);
    stays[4] = BytesStay::kInGather;
    return stays;
  }
  absl::Status Gather(bool may_wait) { return GatherAll(source_, owner_, stay_, may_wait); }

  StagingPool pool_{20 * kSegmentBytes, Device()};
  Owner owner_{3};
  const std::vector<BytesStay> stay_ = Stays();
  StagedSource source_{owner_.Snapshot(stay_), pool_};
};

TEST_F(GatheredMemoryTest, WithoutAWriterAGatherDoesNotWaitForMemory) {
  const absl::Status taken = Gather(/*may_wait=*/false);
  EXPECT_EQ(taken.code(), absl::StatusCode::kResourceExhausted) << taken;
  EXPECT_THAT(std::string(taken.message()), ::testing::HasSubstr("checkpoint.staging_memory"));
  source_.Close();
}

// A writer frees blocks, and where there is none it has nothing to free.
TEST_F(GatheredMemoryTest, WithoutAnyBlockAGatherFailsTheSaveAlsoWhereItMayWait) {
  absl::Status written;
  std::thread writer([&] {
    Bytes some;
    written = Read(source_, stay_.size(), 4, some);
    source_.Close();
  });
  EXPECT_EQ(Gather(/*may_wait=*/true).code(), absl::StatusCode::kResourceExhausted);
  source_.LetStep(/*may_wait=*/true);
  writer.join();
  EXPECT_EQ(written.code(), absl::StatusCode::kResourceExhausted);
}

TEST(StagingPoolTest, WhenFillingHasEndedNoBlockIsOnItsWay) {
  const auto device = std::make_shared<LateDevice>();
  std::promise<void> fills;
  device->before_block = [&] { fills.set_value(); };
  StagingPool pool(kSegmentBytes, device);
  std::thread filler([&] { pool.Fill(kSegmentBytes); });
  fills.get_future().wait();
  pool.EndFilling();
  EXPECT_NE(pool.Take(), nullptr);
  filler.join();
}

// A file has its tensors by type, the largest first, and then by name, as safetensors writes them.
// A tensor that is gathered in another order may need a block that the writer does not free before
// it has that tensor.
TEST(SortAsWrittenTest, GathersComeInTheOrderOfTheFile) {
  SpanSource source;
  const Bytes bytes(4);
  const auto add = [&](const char* name, DType dtype, bool is_mine) {
    const auto place = static_cast<int64_t>(source.model.size());
    Gather& gather = source.gathers.emplace_back();
    gather.name = name;
    gather.dtype = dtype;
    gather.model = is_mine ? place : -1;
    if (is_mine) {
      source.model.push_back({{name, dtype, {1}}, bytes, BytesStay::kInGather});
    }
  };
  add("layer.2", DType::kBFloat16, true);
  add("norm", DType::kFloat32, true);
  add("layer.10", DType::kBFloat16, false);
  add("embedding", DType::kFloat32, true);
  add("layer.1", DType::kBFloat16, true);
  source.SortAsWritten();
  std::vector<std::string> model;
  for (const NamedTensor& tensor : source.model) {
    model.push_back(tensor.spec.name);
  }
  EXPECT_THAT(model, ::testing::ElementsAre("embedding", "norm", "layer.1", "layer.2"));
  using Places = std::vector<std::pair<std::string, int64_t>>;
  Places gathers;
  for (const Gather& gather : source.gathers) {
    gathers.emplace_back(gather.name, gather.model);
  }
  EXPECT_EQ(
      gathers,
      (Places{{"embedding", 0}, {"norm", 1}, {"layer.1", 2}, {"layer.10", -1}, {"layer.2", 3}}));
}

}  // namespace
}  // namespace dtrain::checkpoint::gathered_source_test
