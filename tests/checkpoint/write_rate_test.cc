// The writer of a snapshot keeps to a rate, and to none while somebody waits for it. Where the rate
// is a byte a second, these tests end only if it was lifted.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/commit/staged_source.h"

namespace dtrain::checkpoint::write_rate_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint64_t kSegments = 5;
constexpr uint64_t kWholePool = kSegments * kSegmentBytes;

struct Snapshot {
  Bytes model = Bytes(3 * kSegmentBytes, std::byte{1});
  Bytes state = Bytes(2 * kSegmentBytes, std::byte{2});
  SpanSource Source(BytesStay stay = BytesStay::kUntilUpdate) const {
    SpanSource source;
    const auto shape = [](const Bytes& bytes) { return static_cast<int64_t>(bytes.size()); };
    source.model.push_back({{"model", DType::kUInt8, {shape(model)}}, model, stay});
    source.state.push_back({{"state", DType::kUInt8, {shape(state)}}, state, stay});
    return source;
  }
};

Bytes Read(StagedSource& source) {
  Bytes read;
  const auto sink = [&](absl::Span<const std::byte> part) {
    read.insert(read.end(), part.begin(), part.end());
    return absl::OkStatus();
  };
  EXPECT_TRUE(source.GiveModel(0, sink).ok());
  EXPECT_TRUE(source.GiveState(0, sink).ok());
  return read;
}

TEST(WriteRateTest, Holds) {
  const Snapshot snapshot;
  for (const BytesStay stay : {BytesStay::kUntilUpdate, BytesStay::kWithSnapshot}) {
    StagingPool pool(kWholePool);
    // Four segments are paid for when the fifth is given.
    StagedSource source(snapshot.Source(stay), pool, /*bytes_per_s=*/40 * kSegmentBytes);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(Read(source).size(), kWholePool);
    EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(99));
    source.Close();
  }
}

TEST(WriteRateTest, DoesNotHoldWhileAnUpdateWaitsForTheWriter) {
  Snapshot snapshot;
  StagingPool pool(kSegmentBytes);
  StagedSource source(snapshot.Source(), pool, /*bytes_per_s=*/1);
  Bytes read;
  std::thread writer([&] {
    read = Read(source);
    source.Close();
  });
  source.LetUpdate();
  snapshot.model.assign(snapshot.model.size(), std::byte{9});
  source.LiftRate();  // The last segment is held back again.
  writer.join();
  ASSERT_EQ(read.size(), kWholePool);
  EXPECT_EQ(read.front(), std::byte{1});
  EXPECT_EQ(read.back(), std::byte{2});
}

TEST(WriteRateTest, HoldsUpNoUpdateThatNeedsCopiesAlone) {
  const Snapshot snapshot;
  StagingPool pool(kWholePool);
  StagedSource source(snapshot.Source(), pool, /*bytes_per_s=*/1);
  Bytes read;
  std::thread writer([&] {
    read = Read(source);
    source.Close();
  });
  source.LetUpdate();
  source.LetUpdate();
  source.LiftRate();
  writer.join();
  EXPECT_EQ(read.size(), kWholePool);
}

}  // namespace
}  // namespace dtrain::checkpoint::write_rate_test
