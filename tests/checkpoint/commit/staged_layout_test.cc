// The places of a snapshot's bytes in the stream that is copied, worked out by hand.
#include "checkpoint/commit/staged_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtrain::checkpoint::staged_layout_test {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kSegment = kSegmentBytes;

NamedTensor Tensor(const std::string& name, const std::vector<std::byte>& bytes, BytesStay stay) {
  return {{name, DType::kUInt8, {static_cast<int64_t>(bytes.size())}}, bytes, stay};
}

MATCHER_P3(IsPiece, begin, bytes, on_device, "") {
  return arg.begin == begin && arg.bytes.data() == bytes.data() &&
         arg.bytes.size() == bytes.size() && arg.on_device == on_device;
}

TEST(StagedLayoutTest, EachPartHasSegmentsOfItsOwn) {
  const std::vector<std::byte> updated(5);
  const std::vector<std::byte> gathered(kSegment + 1);
  const std::vector<std::byte> owned(7);
  const std::vector<std::byte> stepped(3);
  const std::vector<std::byte> stepped_state(kSegment - 3);
  const std::vector<std::byte> updated_state(2 * kSegment);
  SpanSource snapshot;
  snapshot.model = {Tensor("updated", updated, BytesStay::kUntilUpdate),
                    Tensor("gathered", gathered, BytesStay::kInGather),
                    Tensor("empty", {}, BytesStay::kInGather),
                    Tensor("owned", owned, BytesStay::kWithSnapshot),
                    Tensor("stepped", stepped, BytesStay::kUntilStep)};
  snapshot.model[4].on_device = true;
  snapshot.state = {Tensor("stepped", stepped_state, BytesStay::kUntilStep),
                    Tensor("updated", updated_state, BytesStay::kUntilUpdate)};
  const StagedLayout layout = LayOut(snapshot);

  EXPECT_THAT(layout.segment_bytes, ElementsAre(kSegment, 1, kSegment, kSegment, kSegment, 5));
  EXPECT_EQ(layout.block_bytes(), 6 * kSegment);
  EXPECT_EQ(layout.step_begin, 2);
  EXPECT_EQ(layout.step_end, 3);
  EXPECT_THAT(layout.model_pieces, ElementsAre(3, 0, std::nullopt, std::nullopt, 1));
  EXPECT_THAT(layout.state_pieces, ElementsAre(2, 4));
  EXPECT_THAT(layout.pieces,
              ElementsAre(IsPiece(0U, snapshot.model[1].bytes, false),
                          IsPiece(2 * kSegment, snapshot.model[4].bytes, true),
                          IsPiece(2 * kSegment + 3, snapshot.state[0].bytes, false),
                          IsPiece(3 * kSegment, snapshot.model[0].bytes, false),
                          IsPiece(3 * kSegment + 5, snapshot.state[1].bytes, false)));

  const auto part_of = [](const NamedTensor& tensor, uint64_t begin, uint64_t bytes) {
    return tensor.bytes.subspan(begin, bytes);
  };
  const NamedTensor& last = snapshot.state[1];
  EXPECT_THAT(layout.PiecesIn(0),
              ElementsAre(IsPiece(0U, part_of(snapshot.model[1], 0, kSegment), false)));
  EXPECT_THAT(layout.PiecesIn(1),
              ElementsAre(IsPiece(kSegment, part_of(snapshot.model[1], kSegment, 1), false)));
  EXPECT_THAT(layout.PiecesIn(2),
              ElementsAre(IsPiece(2 * kSegment, snapshot.model[4].bytes, true),
                          IsPiece(2 * kSegment + 3, snapshot.state[0].bytes, false)));
  EXPECT_THAT(layout.PiecesIn(3),
              ElementsAre(IsPiece(3 * kSegment, snapshot.model[0].bytes, false),
                          IsPiece(3 * kSegment + 5, part_of(last, 0, kSegment - 5), false)));
  EXPECT_THAT(layout.PiecesIn(4),
              ElementsAre(IsPiece(4 * kSegment, part_of(last, kSegment - 5, kSegment), false)));
  EXPECT_THAT(layout.PiecesIn(5),
              ElementsAre(IsPiece(5 * kSegment, part_of(last, 2 * kSegment - 5, 5), false)));
}

TEST(StagedLayoutTest, WhatNothingWillChangeIsNotInTheStream) {
  const std::vector<std::byte> owned(7);
  SpanSource snapshot;
  snapshot.model = {Tensor("owned", owned, BytesStay::kWithSnapshot)};
  snapshot.state = {Tensor("empty", {}, BytesStay::kUntilUpdate)};
  const StagedLayout layout = LayOut(snapshot);
  EXPECT_THAT(layout.model_pieces, ElementsAre(std::nullopt));
  EXPECT_THAT(layout.state_pieces, ElementsAre(std::nullopt));
  EXPECT_EQ(layout.block_bytes(), 0);
}

}  // namespace
}  // namespace dtrain::checkpoint::staged_layout_test
