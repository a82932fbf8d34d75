#include "comm/net/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace dtrain::comm::frame_test {
namespace {

using ::testing::HasSubstr;

std::string Encode(const FrameHeader& header, const std::string& payload) {
  const auto bytes = EncodeFrameHeader(header);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) + payload;
}

// Feeds `bytes` in pieces of at most `piece`, and gives the frames or the first error.
absl::StatusOr<std::vector<Frame>> Feed(FrameReader& reader, absl::string_view bytes,
                                        size_t piece) {
  std::vector<Frame> frames;
  while (!bytes.empty()) {
    const auto space = reader.Space();
    const size_t take = std::min({space.size(), bytes.size(), piece});
    std::memcpy(space.data(), bytes.data(), take);
    bytes.remove_prefix(take);
    auto frame = reader.Commit(take);
    if (!frame.ok()) {
      return frame.status();
    }
    if (frame->has_value()) {
      frames.push_back(**std::move(frame));
    }
  }
  return frames;
}

TEST(FrameReader, PutsFramesTogetherFromAnyPieces) {
  const std::string large(200000, 'x');
  const std::string bytes = Encode({5, 16, 0, 7}, "hello") + Encode({0, 17, 1, 7}, "") +
                            Encode({200000, 18, 2, 7}, large);
  for (const size_t piece : {1U, 7U, 24U, 1000U, 1U << 20}) {
    FrameReader reader;
    reader.RequireEpoch(7);
    const auto frames = Feed(reader, bytes, piece);
    ASSERT_TRUE(frames.ok()) << frames.status();
    ASSERT_EQ(frames->size(), 3U);
    EXPECT_EQ((*frames)[0].payload, "hello");
    EXPECT_EQ((*frames)[1].type, 17U);
    EXPECT_TRUE((*frames)[2].payload == large);
    EXPECT_EQ(reader.buffered_bytes(), 0U);
  }
}

TEST(FrameReader, TruncatedFrameIsNoFrame) {
  const std::string bytes = Encode({5, 16, 0, 7}, "hello");
  for (size_t length = 0; length < bytes.size(); ++length) {
    FrameReader reader;
    const auto frames = Feed(reader, bytes.substr(0, length), 1000);
    ASSERT_TRUE(frames.ok());
    EXPECT_TRUE(frames->empty());
  }
}

TEST(FrameReader, RefusesALongerPayloadThanAllowedBeforeItComes) {
  FrameReader reader;
  const auto frames = Feed(reader, Encode({kFramePayloadBytesMax + 1, 16, 0, 7}, ""), 1000);
  EXPECT_EQ(frames.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(frames.status().message()), HasSubstr("16777217"));
}

TEST(FrameReader, AnnouncedLengthAloneTakesLittleMemory) {
  FrameReader reader;
  ASSERT_TRUE(Feed(reader, Encode({kFramePayloadBytesMax, 16, 0, 7}, "x"), 1000).ok());
  EXPECT_LE(reader.Space().size(), 64U << 10);
}

TEST(FrameReader, RefusesAWrongSequenceOrEpoch) {
  FrameReader repeated;
  ASSERT_TRUE(Feed(repeated, Encode({0, 16, 0, 7}, ""), 1000).ok());
  EXPECT_THAT(std::string(Feed(repeated, Encode({0, 16, 0, 7}, ""), 1000).status().message()),
              HasSubstr("sequence number 0; expected 1"));
  FrameReader stale;
  stale.RequireEpoch(8);
  EXPECT_THAT(std::string(Feed(stale, Encode({0, 16, 0, 7}, ""), 1000).status().message()),
              HasSubstr("epoch 7"));
}

TEST(FrameHeader, EveryBitCounts) {
  const FrameHeader header{0x01020304, 0x05060708, 0x1112131415161718, 0x2122232425262728};
  auto bytes = EncodeFrameHeader(header);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ (1U << (bit % 8)));
    EXPECT_NE(EncodeFrameHeader(DecodeFrameHeader(flipped)), bytes);
  }
  EXPECT_EQ(EncodeFrameHeader(DecodeFrameHeader(bytes)), bytes);
}

}  // namespace
}  // namespace dtrain::comm::frame_test
