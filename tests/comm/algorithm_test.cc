#include "comm/collectives/algorithm.h"

#include <gtest/gtest.h>

#include "comm/collectives/link_cost.h"
#include "comm/collectives/schedule.h"

namespace dtrain::comm::algorithm_test {
namespace {

// 50 us a step, 3 us a further message, 1 GB/s between two, half of it among all, sums at 10 GB/s.
constexpr LinkCost kLan{50, 3, 1000, 2000, 100};

CallHeader Header(CallKind kind, DType dtype, size_t bytes = size_t{1} << 30) {
  CallHeader header;
  header.kind = kind;
  header.dtype = dtype;
  header.bytes = bytes;
  return header;
}

Choice Automatic(const CallHeader& header, int size, bool deterministic = false,
                 const LinkCost& cost = kLan) {
  return ChooseAlgorithm(header, size, deterministic, Algorithm::kAutomatic, cost);
}

Algorithm Wanted(const CallHeader& header, Algorithm wanted, int size = 64,
                 bool deterministic = false) {
  return ChooseAlgorithm(header, size, deterministic, wanted, kLan).algorithm;
}

TEST(ChooseAlgorithmTest, SmallBuffersDoubleAndLargerOnesHalve) {
  const auto choose = [](size_t bytes) {
    return Automatic(Header(CallKind::kAllReduce, DType::kFloat32, bytes), 8).algorithm;
  };
  // Two steps with seven messages are faster than three steps.
  EXPECT_EQ(choose(1024), Algorithm::kDirect);
  EXPECT_EQ(choose(size_t{16} << 20), Algorithm::kHalving);
  // If a further message costs as much as a step, three steps are faster than two with seven
  // messages.
  const LinkCost slow_calls{50, 50, 1000, 1000, 100};
  EXPECT_EQ(Automatic(Header(CallKind::kAllReduce, DType::kFloat32, 1024), 8, false, slow_calls)
                .algorithm,
            Algorithm::kDoubling);
}

TEST(ChooseAlgorithmTest, TwoRanksExchangeAllWhileThatIsCheaperThanAnotherStep) {
  for (const bool deterministic : {false, true}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      EXPECT_EQ(Automatic(Header(CallKind::kAllReduce, dtype, 65536), 2, deterministic).algorithm,
                Algorithm::kDoubling);
      EXPECT_EQ(Automatic(Header(CallKind::kAllReduce, dtype), 2, deterministic).algorithm,
                Algorithm::kDirect);
    }
  }
}

// The bits of a sum must not depend on measured costs.
TEST(ChooseAlgorithmTest, WhateverIsMeasuredFloatsAreSummedInOneOrder) {
  for (int size = 2; size <= 64; ++size) {
    for (const CallKind kind : {CallKind::kAllReduce, CallKind::kReduceScatter}) {
      for (const bool deterministic : {false, true}) {
        for (const size_t bytes : {size_t{8}, size_t{1} << 16, size_t{1} << 30}) {
          const CallHeader header = Header(kind, DType::kFloat32, bytes);
          const auto in_pairs = [](const Choice& choice) {
            return choice.pairwise || choice.algorithm == Algorithm::kHalving ||
                   choice.algorithm == Algorithm::kDoubling;
          };
          const Choice first = Automatic(header, size, deterministic);
          for (const double step : {0.0, 1.0, 1e6}) {
            for (const double message : {0.0, 1e3}) {
              for (const double among_all : {1.0, 1e9}) {
                const LinkCost cost{step, message, 10, among_all, 1};
                const Choice choice = Automatic(header, size, deterministic, cost);
                EXPECT_EQ(choice.algorithm == Algorithm::kRing,
                          first.algorithm == Algorithm::kRing);
                EXPECT_TRUE(size == 2 || in_pairs(choice) == in_pairs(first)) << size;
                EXPECT_TRUE(size == 2 || !deterministic ||
                            (choice.algorithm == Algorithm::kDirect && !choice.pairwise));
              }
            }
          }
        }
      }
    }
  }
}

TEST(ChooseAlgorithmTest, ARingIsForLargeBuffersOfManyRanks) {
  const int many = kRingRanks + 1;
  const size_t large = kRingSliceBytes * many;
  const auto choose = [](size_t bytes, int size) {
    return Automatic(Header(CallKind::kAllReduce, DType::kFloat32, bytes), size).algorithm;
  };
  EXPECT_EQ(choose(large, many), Algorithm::kRing);
  EXPECT_EQ(choose(large - 1, many), Algorithm::kDirect);
  EXPECT_EQ(choose(large, kRingRanks - 1), Algorithm::kDirect);
  EXPECT_EQ(choose(large, kRingRanks), Algorithm::kHalving);  // A power of two.
}

TEST(ChooseAlgorithmTest, PartialSumsNeverTravelWhereTheirOrderOrRoundingWouldShow) {
  for (const Algorithm wanted : {Algorithm::kRing, Algorithm::kHalving}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
      EXPECT_EQ(Wanted(Header(CallKind::kAllReduce, dtype), wanted), wanted);
      EXPECT_EQ(Wanted(Header(CallKind::kAllReduce, dtype), wanted, 64, true), Algorithm::kDirect);
    }
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      EXPECT_EQ(Wanted(Header(CallKind::kAllReduce, dtype), wanted), Algorithm::kDirect);
    }
    for (const DType dtype : {DType::kInt32, DType::kInt64, DType::kUInt8}) {
      EXPECT_EQ(Wanted(Header(CallKind::kAllReduce, dtype), wanted, 64, true), wanted);
    }
    CallHeader wire = Header(CallKind::kAllReduce, DType::kFloat32);
    wire.wire = Wire::kBFloat16;
    EXPECT_EQ(Wanted(wire, wanted), Algorithm::kDirect);
  }
  EXPECT_EQ(Wanted(Header(CallKind::kReduceScatter, DType::kFloat32), Algorithm::kRing),
            Algorithm::kRing);
}

TEST(ChooseAlgorithmTest, WhatHasNoScheduleGoesDirect) {
  for (const CallKind kind : {CallKind::kBroadcast, CallKind::kAllToAll}) {
    EXPECT_EQ(Wanted(Header(kind, DType::kFloat32), Algorithm::kRing), Algorithm::kDirect);
  }
  EXPECT_EQ(Wanted(Header(CallKind::kAllReduce, DType::kFloat32), Algorithm::kHalving, 6),
            Algorithm::kDirect);
  EXPECT_EQ(Wanted(Header(CallKind::kReduceScatter, DType::kFloat32), Algorithm::kDoubling),
            Algorithm::kDirect);
}

TEST(ChooseAlgorithmTest, WhatOnlyMovesTakesTheCheapestWithEveryType) {
  const CallHeader small = Header(CallKind::kAllGather, DType::kBFloat16, 1024);
  EXPECT_EQ(Automatic(small, 64, true, {50, 50, 1000, 1000, 100}).algorithm, Algorithm::kDoubling);
  EXPECT_EQ(Automatic(small, 6, true).algorithm, Algorithm::kDirect);
  EXPECT_EQ(Automatic(Header(CallKind::kAllGather, DType::kBFloat16), 6, true).algorithm,
            Algorithm::kRing);
}

TEST(EstimateMicrosTest, StepsAndBytesAreThoseOfTheSchedules) {
  const LinkCost steps{1, 0, 0, 0, 0};
  const size_t bytes = size_t{1} << 20;
  for (const CallKind kind : {CallKind::kAllReduce, CallKind::kAllGather}) {
    for (const Algorithm algorithm : {Algorithm::kDoubling, Algorithm::kHalving}) {
      for (const int size : {2, 4, 8, 16}) {
        if (!Schedule::HasForm(kind, algorithm, size)) {
          continue;
        }
        const bool whole = kind == CallKind::kAllReduce;
        const Schedule schedule({.kind = kind,
                                 .algorithm = algorithm,
                                 .size = size,
                                 .count = whole ? bytes : bytes / static_cast<size_t>(size)});
        EXPECT_EQ(EstimateMicros(kind, algorithm, size, bytes, steps),
                  static_cast<double>(schedule.steps()));
        size_t sent = 0;
        Step step;
        for (size_t i = 0; i < schedule.steps(); ++i) {
          schedule.Fill(i, step);
          for (const Message& message : step.sends) {
            sent += message.range.count;
          }
        }
        EXPECT_EQ(EstimateMicros(kind, algorithm, size, bytes, {0, 0, 1, 0, 0}),
                  static_cast<double>(sent) / static_cast<double>(bytes));
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::comm::algorithm_test
