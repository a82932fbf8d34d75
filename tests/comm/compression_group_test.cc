// Compressed buckets between real ranks: the same bits on all ranks, few bytes, and by error
// feedback the same training result as without compression.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "comm/compression/bucket_reduction.h"
#include "comm/compression/low_rank.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::compression_group_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

struct Case {
  Compression kind;
  int ranks;
  bool shared_memory = true;
};

std::string NameOf(Compression kind) {
  return kind == Compression::kInt8 ? "Int8" : kind == Compression::kPowerSgd ? "PowerSgd" : "None";
}

class CompressionGroupTest : public ::testing::TestWithParam<Case> {
 protected:
  static void RunAll(const testing::RankBody& body) {
    for (const RankResult& result : RunRanks({.size = GetParam().ranks}, body)) {
      EXPECT_TRUE(result.status.ok()) << result.status;
    }
  }
  static absl::StatusOr<std::unique_ptr<Group>> Create(const RankContext& context) {
    GroupOptions options = context.group_options();
    options.allow_shared_memory = GetParam().shared_memory;
    return CreateHostGroup(context.store, options);
  }
  // Options that compress from the first step on.
  static CompressionOptions Options(int rank = 4) {
    return {.kind = GetParam().kind, .rank = rank, .start_step = 0, .elements_min = 0, .seed = 11};
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, CompressionGroupTest,
                         ::testing::Values(Case{Compression::kPowerSgd, 2},
                                           Case{Compression::kPowerSgd, 3},
                                           Case{Compression::kPowerSgd, 2, false},
                                           Case{Compression::kInt8, 2}, Case{Compression::kInt8, 3},
                                           Case{Compression::kInt8, 2, false}),
                         [](const ::testing::TestParamInfo<Case>& tested) {
                           return absl::StrCat(NameOf(tested.param.kind), tested.param.ranks,
                                               tested.param.shared_memory ? "Shm" : "Tcp");
                         });

// Two matrices, a vector between them, a matrix too small to factor, and padding.
BucketShape Shape() {
  return {.name = "bucket 0 (test)",
          .elements = 7000,
          .tensors = {{.start = 0, .rows = 64, .columns = 48},
                      {.start = 3072, .rows = 50, .columns = 1},
                      {.start = 3136, .rows = 40, .columns = 90},
                      {.start = 6752, .rows = 3, .columns = 5}}};
}

std::vector<float> Gradient(int rank, int64_t step) {
  SplitMix64 random(static_cast<uint64_t>(rank * 1000 + step));
  std::vector<float> values(Shape().elements);
  for (float& value : values) {
    value = static_cast<float>(2 * random.Uniform() - 1);
  }
  return values;
}

absl::Status ReduceStep(BucketReduction& reduction, std::vector<float>& values, int64_t step) {
  DT_RETURN_IF_ERROR(reduction.Start(absl::MakeSpan(values), step));
  while (true) {
    DT_ASSIGN_OR_RETURN(const bool done, reduction.Advance());
    if (done) {
      return absl::OkStatus();
    }
  }
}

absl::Status SameOnAllRanks(Group& group, const std::vector<float>& values) {
  std::vector<float> all(values.size() * static_cast<size_t>(group.size()));
  DT_ASSIGN_OR_RETURN(const Work work,
                      group.AllGather({const_cast<float*>(values.data()), values.size() * 4},
                                      {all.data(), all.size() * 4}));
  DT_RETURN_IF_ERROR(work.Wait());
  for (size_t i = 0; i < all.size(); i += values.size()) {
    if (std::memcmp(all.data() + i, values.data(), values.size() * 4) != 0) {
      return absl::InternalError(absl::StrFormat("rank %d has other bits", i / values.size()));
    }
  }
  return absl::OkStatus();
}

double Distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::sqrt(sum);
}

TEST_P(CompressionGroupTest, EveryRankGetsTheSameBitsAndTheSumOfSquaresOfThem) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    const auto reduction = CreateBucketReduction(*group, Shape(), Options());
    for (int64_t step = 1; step <= 5; ++step) {
      std::vector<float> values = Gradient(context.rank, step);
      DT_RETURN_IF_ERROR(ReduceStep(*reduction, values, step));
      DT_RETURN_IF_ERROR(SameOnAllRanks(*group, values));
      if (reduction->sum_of_squares() != SquareSum(values.data(), values.size())) {
        return absl::InternalError("another sum of squares");
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

// The error of a step is added later: over many steps the sums differ from the true ones only by
// the remembered error, which does not grow with the steps.
TEST_P(CompressionGroupTest, NothingIsLostOverManySteps) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    const auto reduction = CreateBucketReduction(*group, Shape(), Options());
    const size_t count = Shape().elements;
    std::vector<double> compressed(count);
    std::vector<double> exact(count);
    const auto add = [](std::vector<double>& to, const std::vector<float>& values) {
      for (size_t i = 0; i < values.size(); ++i) {
        to[i] += static_cast<double>(values[i]);
      }
    };
    constexpr int64_t kSteps = 200;
    for (int64_t step = 1; step <= kSteps; ++step) {
      // The same gradient each step, so that the exact sum grows with their number.
      std::vector<float> values = Gradient(context.rank, 0);
      DT_RETURN_IF_ERROR(ReduceStep(*reduction, values, step));
      add(compressed, values);
      for (int rank = 0; rank < context.size; ++rank) {
        add(exact, Gradient(rank, 0));
      }
    }
    const std::vector<double> zero(count);
    const double relative = Distance(compressed, exact) / Distance(exact, zero);
    // With rank 4 of 40 to 48 directions, PowerSGD remembers about 10 steps, and int8 one rounding.
    const double bound = GetParam().kind == Compression::kInt8 ? 1e-4 : 0.15;
    return relative < bound ? group->Barrier(Deadline::Infinite())
                            : absl::InternalError(absl::StrCat("off by ", relative));
  });
}

TEST_P(CompressionGroupTest, AStepThatIsNotFiniteIsSeenByAllAndLeavesNothingBehind) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      const auto reduction = CreateBucketReduction(*group, Shape(), Options());
      std::vector<float> values = Gradient(context.rank, 1);
      values[100] = context.rank == 1 ? bad : values[100];
      DT_RETURN_IF_ERROR(ReduceStep(*reduction, values, 1));
      if (std::isfinite(reduction->sum_of_squares())) {
        return absl::InternalError("it was not noticed");
      }
      values = Gradient(context.rank, 2);
      DT_RETURN_IF_ERROR(ReduceStep(*reduction, values, 2));
      DT_RETURN_IF_ERROR(SameOnAllRanks(*group, values));
      if (!std::isfinite(reduction->sum_of_squares())) {
        return absl::InternalError("the next step is not finite either");
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST_P(CompressionGroupTest, TheFirstStepsAndSmallBucketsAreNotCompressed) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    const auto exact = [&](const CompressionOptions& options,
                           int64_t step) -> absl::StatusOr<bool> {
      const auto reduction = CreateBucketReduction(*group, Shape(), options);
      std::vector<float> values = Gradient(context.rank, step);
      std::vector<float> plain = values;
      DT_RETURN_IF_ERROR(ReduceStep(*reduction, values, step));
      DT_ASSIGN_OR_RETURN(const Work work,
                          group->AllReduce({plain.data(), plain.size() * 4}, ReduceOp::kSum));
      DT_RETURN_IF_ERROR(work.Wait());
      return values == plain;
    };
    CompressionOptions late = Options();
    late.start_step = 5;
    CompressionOptions large = Options();
    large.elements_min = 7001;
    DT_ASSIGN_OR_RETURN(const bool before, exact(late, 5));
    DT_ASSIGN_OR_RETURN(const bool after, exact(late, 6));
    DT_ASSIGN_OR_RETURN(const bool small, exact(large, 6));
    return before && !after && small ? group->Barrier(Deadline::Infinite())
                                     : absl::InternalError("compressed where it should not be");
  });
}

// A codec that counts its calls, of which each reduction has some.
int packed_runs = 0;
int unpacked_runs = 0;
constexpr Int8Codec kCounting = {[](const float* values, size_t count, uint8_t* out, float* error) {
                                   ++packed_runs;
                                   QuantizeInt8(values, count, out, error);
                                 },
                                 [](const uint8_t* packed, size_t count, float* out, bool add) {
                                   ++unpacked_runs;
                                   DequantizeInt8(packed, count, out, add);
                                 }};

TEST_P(CompressionGroupTest, TheGivenInt8CodecIsTheOneThatRuns) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    CompressionOptions counting = Options();
    counting.int8 = kCounting;
    std::vector<float> values = Gradient(context.rank, 1);
    std::vector<float> own = values;
    const auto given = CreateBucketReduction(*group, Shape(), counting);
    DT_RETURN_IF_ERROR(ReduceStep(*given, values, 1));
    const auto standard = CreateBucketReduction(*group, Shape(), Options());
    DT_RETURN_IF_ERROR(ReduceStep(*standard, own, 1));
    // A part for each rank and the sum of one's own are packed; each rank's part and each sum are
    // unpacked.
    const int ranks = GetParam().kind == Compression::kInt8 ? GetParam().ranks : 0;
    const int packed = ranks > 0 ? ranks + 1 : 0;
    if (values != own || packed_runs != packed || unpacked_runs != 2 * ranks) {
      return absl::InternalError(
          absl::StrCat("packed ", packed_runs, " times, unpacked ", unpacked_runs));
    }
    return group->Barrier(Deadline::Infinite());
  });
}

// Bytes that a rank gives to collectives in one reduction; an all-reduce counts twice, because each
// element travels to its reducer and back.
absl::StatusOr<double> BytesOfOneStep(Group& group, BucketReduction& reduction, int rank) {
  const auto bytes = [&]() -> absl::StatusOr<double> {
    DT_ASSIGN_OR_RETURN(const Json record, ParseJson(group.FlightRecord(), "record"));
    double sum = 0;
    for (const Json& entry : record["entries"]) {
      const double twice = entry["dtrain"]["kind"] == "all_reduce" ? 2 : 1;
      sum += twice * entry["dtrain"]["bytes"].get<double>();
    }
    return sum;
  };
  DT_ASSIGN_OR_RETURN(const double before, bytes());
  std::vector<float> values = Gradient(rank, 1);
  DT_RETURN_IF_ERROR(ReduceStep(reduction, values, 1));
  DT_ASSIGN_OR_RETURN(const double after, bytes());
  return after - before;
}

TEST_P(CompressionGroupTest, AQuarterOfTheBytesOrLessTravels) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    BucketShape shape{.name = "bucket", .elements = 7000};
    shape.tensors = {{.start = 0, .rows = 100, .columns = 70}};
    const auto plain = CreateBucketReduction(*group, shape, {});
    const auto compressed = CreateBucketReduction(*group, shape, Options());
    DT_ASSIGN_OR_RETURN(const double whole, BytesOfOneStep(*group, *plain, context.rank));
    DT_ASSIGN_OR_RETURN(const double part, BytesOfOneStep(*group, *compressed, context.rank));
    // int8: 260/1,024 and padding to whole blocks. PowerSGD: 4 * 170 of 7,000.
    const double bound = GetParam().kind == Compression::kInt8 ? 0.29 : 0.1;
    return part < bound * whole ? group->Barrier(Deadline::Infinite())
                                : absl::InternalError(absl::StrCat(part, " of ", whole));
  });
}

// SGD on ||W - target||^2 with noise that is much larger than the gradient and has mean zero: +-a
// in column 0. Each compression keeps only the largest values, so without error feedback it sees
// only the noise.
constexpr size_t kRows = 64;
constexpr size_t kColumns = 32;

absl::StatusOr<double> TrainNoisy(Group& group, const CompressionOptions& options, float noise) {
  BucketShape shape{.name = "bucket", .elements = kRows * kColumns};
  shape.tensors = {{.start = 0, .rows = kRows, .columns = kColumns}};
  const auto reduction = CreateBucketReduction(group, shape, options);
  SplitMix64 random(5);
  std::vector<float> target(shape.elements);
  for (float& value : target) {
    value = static_cast<float>(2 * random.Uniform() - 1);
  }
  std::vector<float> weights(shape.elements, 0.0F);
  const auto loss = [&] {
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double off = static_cast<double>(weights[i]) - static_cast<double>(target[i]);
      sum += i % kColumns == 0 ? 0 : off * off;
    }
    return sum;
  };
  const double first = loss();
  for (int64_t step = 1; step <= 400; ++step) {
    std::vector<float> gradient(shape.elements);
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = weights[i] - target[i];
      gradient[i] += i % kColumns == 0 ? (step % 2 == 0 ? noise : -noise) : 0.0F;
    }
    DT_RETURN_IF_ERROR(ReduceStep(*reduction, gradient, step));
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] -= 0.02F * gradient[i] / static_cast<float>(group.size());
    }
  }
  return loss() / first;
}

TEST_P(CompressionGroupTest, TrainingEndsNearTheUncompressedOneBecauseErrorsAreFedBack) {
  RunAll([](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, Create(context));
    const float noise = GetParam().kind == Compression::kInt8 ? 300.0F : 5.0F;
    CompressionOptions none = Options();
    none.kind = Compression::kNone;
    CompressionOptions forgetful = Options(/*rank=*/1);
    forgetful.error_feedback = false;
    DT_ASSIGN_OR_RETURN(const double plain, TrainNoisy(*group, none, noise));
    DT_ASSIGN_OR_RETURN(const double fed, TrainNoisy(*group, Options(/*rank=*/1), noise));
    DT_ASSIGN_OR_RETURN(const double lost, TrainNoisy(*group, forgetful, noise));
    if (plain > 0.001 || fed > 0.02 || lost < 0.8) {
      return absl::InternalError(
          absl::StrFormat("of the loss at the start %.4f is left without compression, %.4f with, "
                          "%.4f without error "
                          "feedback",
                          plain, fed, lost));
    }
    return group->Barrier(Deadline::Infinite());
  });
}

}  // namespace
}  // namespace dtrain::comm::compression_group_test
