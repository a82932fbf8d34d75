// Every collective of the NCCL group between forked processes against a serial oracle, over the
// byte-moving fake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/numeric/float16.h"
#include "base/numeric/prng.h"
#include "tests/comm/nccl/forked_ranks.h"

namespace dtrain::comm::nccl_collectives_test {
namespace {

// This is more than one chunk of the fake, and no multiple of anything.
constexpr size_t kCount = 9001;

// Rank r's input, which any process can compute.
std::vector<float> InputOf(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const auto mixed = (i * 2654435761U + static_cast<size_t>(rank) * 97U) % 2001U;
    values[i] = (static_cast<float>(mixed) - 1000.0F) / 64.0F;
  }
  return values;
}

Buffer OnDevice(void* data, size_t count, DType dtype) {
  return {data, count * DTypeBytes(dtype), dtype, {DeviceKind::kCuda, 0}};
}

Buffer Upload(FakeRank& self, const std::vector<float>& values) {
  void* const data = self.Allocate(values.size() * sizeof(float));
  std::memcpy(data, values.data(), values.size() * sizeof(float));
  return OnDevice(data, values.size(), DType::kFloat32);
}

std::vector<float> Download(const Buffer& buffer) {
  std::vector<float> values(buffer.count());
  std::memcpy(values.data(), buffer.data, buffer.bytes);
  return values;
}

// The reduction of all ranks' inputs in fp64.
std::vector<double> Oracle(int size, size_t count, ReduceOp op) {
  std::vector<double> result;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> input = InputOf(rank, count);
    if (rank == 0) {
      result.assign(input.begin(), input.end());
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      const double value = input[i];
      result[i] = op == ReduceOp::kMax   ? std::max(result[i], value)
                  : op == ReduceOp::kMin ? std::min(result[i], value)
                                         : result[i] + value;
    }
  }
  if (op == ReduceOp::kAverage) {
    for (double& value : result) {
      value /= size;
    }
  }
  return result;
}

// Values are multiples of 1/64 below 16: sums of three are exact in fp32, and an average differs
// from the oracle by the rounding of 1/3 and of three products (4 ulp).
void ExpectNear(const std::vector<float>& got, const std::vector<double>& expected, size_t from) {
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[from + i], 16.0 * 4 * 6e-8) << "element " << i;
  }
}

class NcclCollectives : public testing::TestWithParam<int> {};

TEST_P(NcclCollectives, AllReduceEqualsTheSerialReductionForEveryOperation) {
  RunRanks(GetParam(), [](FakeRank& self) {
    auto group = self.MakeGroup();
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin}) {
      const Buffer buffer = Upload(self, InputOf(self.rank, kCount));
      auto work = group->AllReduce(buffer, op);
      ASSERT_TRUE(work.ok()) << work.status();
      ASSERT_TRUE(work->Wait().ok());
      EXPECT_TRUE(work->Done());
      EXPECT_GT(work->DurationNanos(), 0);
      ExpectNear(Download(buffer), Oracle(self.size, kCount, op), 0);
    }
    EXPECT_EQ(group->sequence(), 4U);
    group.reset();
    self.ExpectClean();
  });
}

TEST_P(NcclCollectives, AllReduceServesEveryElementType) {
  RunRanks(GetParam(), [](FakeRank& self) {
    auto group = self.MakeGroup();
    const int expected = self.size * (self.size + 1) / 2;
    const auto check = [&](DType dtype, auto store, auto load) {
      const Buffer buffer = OnDevice(self.Allocate(64 * DTypeBytes(dtype)), 64, dtype);
      for (size_t i = 0; i < 64; ++i) {
        store(buffer.data, i, self.rank + 1);
      }
      auto work = group->AllReduce(buffer, ReduceOp::kSum);
      ASSERT_TRUE(work.ok()) << work.status();
      ASSERT_TRUE(work->Wait().ok());
      for (size_t i = 0; i < 64; ++i) {
        ASSERT_EQ(load(buffer.data, i), expected) << DTypeName(dtype) << " " << i;
      }
    };
    const auto plain = [&](DType dtype, auto zero) {
      using T = decltype(zero);
      check(
          dtype, [](void* data, size_t i, int value) { static_cast<T*>(data)[i] = T(value); },
          [](void* data, size_t i) { return int(static_cast<T*>(data)[i]); });
    };
    plain(DType::kFloat32, float{});
    plain(DType::kFloat64, double{});
    plain(DType::kInt32, int32_t{});
    plain(DType::kInt64, int64_t{});
    check(
        DType::kBFloat16,
        [](void* data, size_t i, int value) {
          static_cast<BFloat16*>(data)[i] = ToBFloat16(static_cast<float>(value));
        },
        [](void* data, size_t i) { return int(ToFloat(static_cast<BFloat16*>(data)[i])); });
    check(
        DType::kFloat16,
        [](void* data, size_t i, int value) {
          static_cast<Float16*>(data)[i] = ToFloat16(static_cast<float>(value));
        },
        [](void* data, size_t i) { return int(ToFloat(static_cast<Float16*>(data)[i])); });
    group.reset();
    self.ExpectClean();
  });
}

TEST_P(NcclCollectives, ReduceScatterGivesEachRankItsPartAlsoInPlace) {
  RunRanks(GetParam(), [](FakeRank& self) {
    auto group = self.MakeGroup();
    const size_t total = kCount * static_cast<size_t>(self.size);
    const size_t own = kCount * static_cast<size_t>(self.rank);
    for (const bool in_place : {false, true}) {
      const Buffer input = Upload(self, InputOf(self.rank, total));
      Buffer output = Upload(self, std::vector<float>(kCount));
      if (in_place) {
        output.data = static_cast<float*>(input.data) + own;
      }
      auto work = group->ReduceScatter(input, output, ReduceOp::kAverage);
      ASSERT_TRUE(work.ok()) << work.status();
      ASSERT_TRUE(work->Wait().ok());
      ExpectNear(Download(output), Oracle(self.size, total, ReduceOp::kAverage), own);
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST_P(NcclCollectives, AllGatherBroadcastAndAllToAllMoveTheRightParts) {
  RunRanks(GetParam(), [](FakeRank& self) {
    auto group = self.MakeGroup();
    const auto size = static_cast<size_t>(self.size);
    const Buffer part = Upload(self, InputOf(self.rank, kCount));
    const Buffer whole = Upload(self, std::vector<float>(kCount * size));
    ASSERT_TRUE(group->AllGather(part, whole)->Wait().ok());
    for (int rank = 0; rank < self.size; ++rank) {
      const std::vector<float> expected = InputOf(rank, kCount);
      const auto* const from = static_cast<float*>(whole.data) + static_cast<size_t>(rank) * kCount;
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), from)) << "part " << rank;
    }

    const int root = self.size - 1;
    ASSERT_TRUE(group->Broadcast(part, root)->Wait().ok());
    EXPECT_EQ(Download(part), InputOf(root, kCount));

    const Buffer outgoing = Upload(self, InputOf(self.rank, kCount * size));
    ASSERT_TRUE(group->AllToAll(outgoing, whole)->Wait().ok());
    for (int rank = 0; rank < self.size; ++rank) {
      const std::vector<float> sent = InputOf(rank, kCount * size);
      const auto* const got = static_cast<float*>(whole.data) + static_cast<size_t>(rank) * kCount;
      ASSERT_TRUE(
          std::equal(got, got + kCount, sent.begin() + static_cast<long>(kCount) * self.rank))
          << "from rank " << rank;
    }
    group.reset();
    self.ExpectClean();
  });
}

TEST_P(NcclCollectives, SendAndReceivePassARingOn) {
  RunRanks(GetParam(), [](FakeRank& self) {
    auto group = self.MakeGroup();
    const int next = (self.rank + 1) % self.size;
    const int previous = (self.rank + self.size - 1) % self.size;
    const Buffer mine = Upload(self, InputOf(self.rank, kCount));
    const Buffer theirs = Upload(self, std::vector<float>(kCount));
    // Rank 0 sends first, the others receive first: a blocking order that works.
    if (self.rank == 0) {
      ASSERT_TRUE(group->Send(mine, next)->Wait().ok());
      ASSERT_TRUE(group->Receive(theirs, previous)->Wait().ok());
    } else {
      ASSERT_TRUE(group->Receive(theirs, previous)->Wait().ok());
      ASSERT_TRUE(group->Send(mine, next)->Wait().ok());
    }
    EXPECT_EQ(Download(theirs), InputOf(previous, kCount));
    ASSERT_TRUE(group->Barrier(Deadline::After(absl::Seconds(50))).ok());
    group.reset();
    self.ExpectClean();
  });
}

TEST_P(NcclCollectives, TheSumOfSquaresIsTheSameOnEveryRankAndNotFiniteWhenAnElementIsNot) {
  RunRanks(GetParam(), [](FakeRank& self) {
    auto group = self.MakeGroup();
    const size_t total = kCount * static_cast<size_t>(self.size);
    double expected = 0;
    for (const double value : Oracle(self.size, total, ReduceOp::kAverage)) {
      expected += value * value;
    }
    CollectiveOptions options;
    double whole = -1;
    options.sum_of_squares = &whole;
    Buffer buffer = Upload(self, InputOf(self.rank, total));
    ASSERT_TRUE(group->AllReduce(buffer, ReduceOp::kAverage, options)->Wait().ok());
    EXPECT_NEAR(whole, expected, 1e-6 * expected);

    double parts = -1;
    options.sum_of_squares = &parts;
    buffer = Upload(self, InputOf(self.rank, total));
    const Buffer part = Upload(self, std::vector<float>(kCount));
    ASSERT_TRUE(group->ReduceScatter(buffer, part, ReduceOp::kAverage, options)->Wait().ok());
    EXPECT_NEAR(parts, expected, 1e-6 * expected);
    const auto bits = [](double value) {
      int64_t copied = 0;
      std::memcpy(&copied, &value, sizeof(copied));
      return copied;
    };
    int64_t* const seen = static_cast<int64_t*>(self.Allocate(2 * sizeof(int64_t)));
    seen[0] = bits(parts);
    seen[1] = -bits(parts);
    ASSERT_TRUE(group->AllReduce(OnDevice(seen, 2, DType::kInt64), ReduceOp::kMax)->Wait().ok());
    EXPECT_EQ(seen[0], -seen[1]) << "the ranks' sums differ";

    if (self.rank == 0) {
      static_cast<float*>(buffer.data)[kCount / 2] = INFINITY;
    }
    ASSERT_TRUE(group->ReduceScatter(buffer, part, ReduceOp::kAverage, options)->Wait().ok());
    EXPECT_FALSE(std::isfinite(parts));
    group.reset();
    self.ExpectClean();
  });
}

TEST_P(NcclCollectives, DeterministicReductionsAddInRankOrderBitForBit) {
  RunRanks(GetParam(), [](FakeRank& self) {
    self.options.group.deterministic = true;
    auto group = self.MakeGroup();
    const size_t total = kCount * static_cast<size_t>(self.size);
    std::vector<float> expected(total);
    const auto noise = [&](int rank) {
      std::vector<float> values = InputOf(rank, total);
      for (float& value : values) {
        value *= 1.0F + 1.0F / (3.0F + static_cast<float>(rank));  // Sums now round.
      }
      return values;
    };
    for (int rank = 0; rank < self.size; ++rank) {
      const std::vector<float> input = noise(rank);
      for (size_t i = 0; i < total; ++i) {
        expected[i] = rank == 0 ? input[i] : expected[i] + input[i];
      }
    }
    // A length that leaves the last rank a short part.
    const Buffer odd = Upload(self, noise(self.rank));
    Buffer shorter = odd;
    shorter.bytes -= sizeof(float);
    ASSERT_TRUE(group->AllReduce(shorter, ReduceOp::kSum)->Wait().ok());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end() - 1, static_cast<float*>(odd.data)));

    const Buffer input = Upload(self, noise(self.rank));
    const Buffer output = Upload(self, std::vector<float>(kCount));
    ASSERT_TRUE(group->ReduceScatter(input, output, ReduceOp::kSum)->Wait().ok());
    EXPECT_TRUE(std::equal(static_cast<float*>(output.data),
                           static_cast<float*>(output.data) + kCount,
                           expected.begin() + static_cast<long>(kCount) * self.rank));
    group.reset();
    self.ExpectClean();
  });
}

// Each element is rounded as it leaves, summed in fp32 in rank order, and rounded once more.
TEST_P(NcclCollectives, SixteenBitsOnTheWireAreSummedInFp32BitForBit) {
  RunRanks(GetParam(), [](FakeRank& self) {
    auto group = self.MakeGroup();
    const size_t total = kCount * static_cast<size_t>(self.size);
    const auto noise = [&](int rank) {
      std::vector<float> values = InputOf(rank, total);
      for (float& value : values) {
        value *= 1.0F + 1.0F / (3.0F + static_cast<float>(rank));
      }
      return values;
    };
    for (const Wire wire : {Wire::kBFloat16, Wire::kFloat16}) {
      const auto round = [wire](float value) {
        return wire == Wire::kBFloat16 ? ToFloat(ToBFloat16(value)) : ToFloat(ToFloat16(value));
      };
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        const float scale = op == ReduceOp::kSum ? 1.0F : 1.0F / static_cast<float>(self.size);
        std::vector<float> expected(total);
        for (int rank = 0; rank < self.size; ++rank) {
          const std::vector<float> input = noise(rank);
          for (size_t i = 0; i < total; ++i) {
            expected[i] += round(input[i]);
          }
        }
        double squares = 0;
        for (float& value : expected) {
          value = round(scale * value);
          squares += static_cast<double>(value) * value;
        }
        double sum_of_squares = 0;
        const CollectiveOptions options{.wire = wire, .sum_of_squares = &sum_of_squares};
        // A length that leaves the last rank a short part.
        const Buffer odd = Upload(self, noise(self.rank));
        Buffer shorter = odd;
        shorter.bytes -= sizeof(float);
        ASSERT_TRUE(group->AllReduce(shorter, op, options)->Wait().ok());
        EXPECT_TRUE(
            std::equal(expected.begin(), expected.end() - 1, static_cast<float*>(odd.data)));
        EXPECT_EQ(static_cast<float*>(odd.data)[total - 1], noise(self.rank).back())
            << "what is not of the buffer stays";

        const Buffer input = Upload(self, noise(self.rank));
        const Buffer output = Upload(self, std::vector<float>(kCount));
        ASSERT_TRUE(group->ReduceScatter(input, output, op, options)->Wait().ok());
        EXPECT_TRUE(std::equal(static_cast<float*>(output.data),
                               static_cast<float*>(output.data) + kCount,
                               expected.begin() + static_cast<long>(kCount) * self.rank));
        EXPECT_NEAR(sum_of_squares, squares, 1e-9 * squares);
        EXPECT_EQ(Download(input), noise(self.rank)) << "the input is only read";
      }
    }
    const auto calls = self.nccl.calls();
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "AllReduce"), 0) << "fp32 never travels";
    group.reset();
    self.ExpectClean();
  });
}

TEST_P(NcclCollectives, CollectivesFollowTheComputeStreamAndJoinItAgain) {
  RunRanks(GetParam(), [](FakeRank& self) {
    CudaStream* compute = nullptr;
    ASSERT_EQ(self.cuda.StreamCreate(&compute, false), CudaResult::kSuccess);
    self.options.compute_stream = compute;
    auto group = self.MakeGroup();
    const Buffer buffer = Upload(self, std::vector<float>(kCount));
    auto* const values = static_cast<float*>(buffer.data);
    std::vector<float> seen(kCount);
    // The gradient "is computed" late, and read by a later operation on the same stream.
    self.cuda.Enqueue(compute, [&self, values] {
      Clock::Real().Sleep(absl::Milliseconds(20));
      std::fill(values, values + kCount, static_cast<float>(self.rank + 1));
    });
    auto work = group->AllReduce(buffer, ReduceOp::kSum);
    ASSERT_TRUE(work.ok()) << work.status();
    ASSERT_TRUE(group->JoinStream(compute).ok());
    self.cuda.Enqueue(compute, [&] { std::copy(values, values + kCount, seen.begin()); });
    self.cuda.StreamSynchronize(compute);
    EXPECT_THAT(seen, testing::Each(static_cast<float>(self.size * (self.size + 1) / 2)));
    ASSERT_TRUE(work->Wait().ok());
    self.cuda.StreamDestroy(compute);
    group.reset();
    self.ExpectClean();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclCollectives, testing::Values(2, 3),
                         [](const auto& ranks) { return std::to_string(ranks.param) + "Ranks"; });

TEST(NcclGroup, OneRankAloneNeedsNoStore) {
  RunRanks(1, [](FakeRank& self) {
    self.store = nullptr;
    auto group = self.MakeGroup();
    const Buffer buffer = Upload(self, InputOf(0, 100));
    ASSERT_TRUE(group->AllReduce(buffer, ReduceOp::kAverage)->Wait().ok());
    EXPECT_EQ(Download(buffer), InputOf(0, 100));
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclGroup, SplitGivesGroupsThatReduceByColour) {
  RunRanks(3, [](FakeRank& self) {
    auto group = self.MakeGroup();
    const int color = self.rank == 1 ? 1 : 0;
    auto half = group->Split(color, -self.rank, "half");  // The key turns the order round.
    ASSERT_TRUE(half.ok()) << half.status();
    EXPECT_EQ((*half)->size(), color == 0 ? 2 : 1);
    EXPECT_EQ((*half)->rank(), self.rank == 0 ? 1 : 0);
    const Buffer buffer = Upload(self, {static_cast<float>(1 + self.rank)});
    ASSERT_TRUE((*half)->AllReduce(buffer, ReduceOp::kSum)->Wait().ok());
    EXPECT_EQ(Download(buffer)[0], color == 0 ? 4.0F : 2.0F);
    half->reset();
    group.reset();
    self.ExpectClean();
  });
}

TEST(NcclGroup, RegistrationsAreDroppedBeforeTheCommunicatorInWhateverOrderTheyAreLetGo) {
  RunRanks(2, [](FakeRank& self) {
    auto group = self.MakeGroup();
    void* const data = self.Allocate(4096);
    auto first = group->RegisterDevice(data, 4096);
    auto second = group->RegisterDevice(data, 1024);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(second.ok()) << second.status();
    first->reset();  // The group still exists.
    group.reset();
    second->reset();  // The group has gone, so there is nothing left to do.
    self.ExpectClean();
    const std::vector<std::string> calls = self.nccl.calls();
    const auto last = std::find(calls.rbegin(), calls.rend(), "CommDeregister");
    const auto destroyed = std::find(calls.rbegin(), calls.rend(), "CommDestroy");
    EXPECT_EQ(std::count(calls.begin(), calls.end(), "CommDeregister"), 2);
    EXPECT_GT(last - calls.rbegin(), destroyed - calls.rbegin());
  });
}

TEST(NcclGroup, WrongBuffersAreRefusedBeforeAnythingIsQueued) {
  RunRanks(1, [](FakeRank& self) {
    self.store = nullptr;
    auto group = self.MakeGroup();
    float host = 0;
    const Buffer on_host = {&host, sizeof(host), DType::kFloat32, {}};
    const auto refused = group->AllReduce(on_host, ReduceOp::kSum);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr("host memory"));

    const Buffer numbers = OnDevice(self.Allocate(64), 8, DType::kInt64);
    EXPECT_EQ(group->AllReduce(numbers, ReduceOp::kAverage).status().code(),
              absl::StatusCode::kInvalidArgument);
    Buffer odd = OnDevice(self.Allocate(64), 8, DType::kFloat32);
    CollectiveOptions narrow;
    narrow.wire = Wire::kBFloat16;
    EXPECT_EQ(group->AllReduce(numbers, ReduceOp::kSum, narrow).status().code(),
              absl::StatusCode::kInvalidArgument);
    odd.bytes = 33;
    EXPECT_EQ(group->AllReduce(odd, ReduceOp::kSum).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group->Broadcast(numbers, 1).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group->Register(nullptr).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(group->sequence(), 0U);
    group.reset();
    self.ExpectClean();
  });
}

}  // namespace
}  // namespace dtrain::comm::nccl_collectives_test
