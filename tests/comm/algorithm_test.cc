#include "comm/collectives/algorithm.h"

#include <gtest/gtest.h>

namespace dtrain::comm {
namespace {

CallHeader Header(CallKind kind, DType dtype, size_t bytes = size_t{1} << 30) {
  CallHeader header;
  header.kind = kind;
  header.dtype = dtype;
  header.bytes = bytes;
  return header;
}

Algorithm Automatic(const CallHeader& header, int size, bool deterministic = false) {
  return ChooseAlgorithm(header, size, deterministic, Algorithm::kAutomatic);
}

TEST(ChooseAlgorithmTest, ARingIsForLargeBuffersOfManyRanks) {
  const size_t large = kRingSliceBytes * kRingRanks;
  const CallHeader header = Header(CallKind::kAllReduce, DType::kFloat32, large);
  EXPECT_EQ(Automatic(header, kRingRanks), Algorithm::kRing);
  EXPECT_EQ(Automatic(header, kRingRanks - 1), Algorithm::kDirect);
  EXPECT_EQ(Automatic(header, kRingRanks + 1), Algorithm::kDirect);
  EXPECT_EQ(Automatic(Header(CallKind::kAllReduce, DType::kFloat32, large - 1), kRingRanks),
            Algorithm::kDirect);
}

TEST(ChooseAlgorithmTest, ARingNeverReducesWhereItsOrderOrRoundingWouldShow) {
  for (const Algorithm wanted : {Algorithm::kAutomatic, Algorithm::kRing}) {
    for (const CallKind kind : {CallKind::kAllReduce, CallKind::kReduceScatter}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
        EXPECT_EQ(ChooseAlgorithm(Header(kind, dtype), 64, false, wanted), Algorithm::kRing);
        EXPECT_EQ(ChooseAlgorithm(Header(kind, dtype), 64, true, wanted), Algorithm::kDirect);
      }
      for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        EXPECT_EQ(ChooseAlgorithm(Header(kind, dtype), 64, false, wanted), Algorithm::kDirect);
      }
      for (const DType dtype : {DType::kInt32, DType::kInt64, DType::kUInt8}) {
        EXPECT_EQ(ChooseAlgorithm(Header(kind, dtype), 64, true, wanted), Algorithm::kRing);
      }
      CallHeader wire = Header(kind, DType::kFloat32);
      wire.wire = Wire::kBFloat16;
      EXPECT_EQ(ChooseAlgorithm(wire, 64, false, wanted), Algorithm::kDirect);
    }
  }
}

TEST(ChooseAlgorithmTest, WhatOnlyMovesMayGoRoundWithEveryType) {
  EXPECT_EQ(Automatic(Header(CallKind::kAllGather, DType::kBFloat16), 64, true), Algorithm::kRing);
  for (const CallKind kind : {CallKind::kBroadcast, CallKind::kAllToAll}) {
    EXPECT_EQ(ChooseAlgorithm(Header(kind, DType::kFloat32), 64, false, Algorithm::kRing),
              Algorithm::kDirect);
  }
}

TEST(ChooseAlgorithmTest, DirectIsFollowedAlways) {
  EXPECT_EQ(
      ChooseAlgorithm(Header(CallKind::kAllReduce, DType::kFloat32), 64, false, Algorithm::kDirect),
      Algorithm::kDirect);
}

}  // namespace
}  // namespace dtrain::comm
