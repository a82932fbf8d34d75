// comm.compression on a GPU, over the fakes: beside the host's policies, bucket by bucket, and in
// the engine. int8 has the host's bits; PowerSGD's products are LibTorch's, whose sums have another
// order, so it agrees to fp32's rounding.
#include "runtime/gradients/compression/device_compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::device_compression_test {
namespace {

using testing::ExpectSame;
using testing::FakeGpu;
using testing::Outcome;
using testing::OutcomeOf;
using testing::RankContext;
using testing::Way;

constexpr Way::Place kPlaces[] = {Way::Place::kNccl, Way::Place::kStaged};
constexpr size_t kElements = 5003;  // A bucket's; no whole number of blocks, nor of parts.

// Two matrices of one shape, another between them, a vector and padding.
comm::BucketShape Shape() {
  return {.name = "bucket",
          .elements = kElements,
          .tensors = {{.start = 0, .rows = 40, .columns = 32},
                      {.start = 1280, .rows = 24, .columns = 64},
                      {.start = 2820, .rows = 40, .columns = 32},
                      {.start = 4100, .rows = 900}}};
}

// A gradient of rank 3 and a little noise, another on every rank.
std::vector<float> Gradient(int rank, int64_t step) {
  SplitMix64 random(static_cast<uint64_t>(100 * step + rank));
  std::vector<float> values(kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const auto x = static_cast<double>(i);
    values[i] = static_cast<float>(std::sin(x * 0.37 + rank) * std::cos(x * 0.011 * (1 + rank)) +
                                   0.02 * (random.Uniform() - 0.5));
  }
  return values;
}

// One rank's ways to sum a bucket: the host's, and a GPU's as often as it is made.
struct Sums {
  static absl::StatusOr<Sums> Open(RankContext& context, const std::string& folder,
                                   Way::Place place, FakeGpu& gpu) {
    Sums sums;
    DT_ASSIGN_OR_RETURN(sums.job, testing::MakeJob(&context, folder, {.place = place}, &gpu));
    DT_ASSIGN_OR_RETURN(sums.memory, DeviceMemory::Create(*sums.job->state().device,
                                                          kElements * sizeof(float), "a bucket"));
    return sums;
  }
  absl::StatusOr<std::unique_ptr<DeviceCompression>> Make(
      const comm::CompressionOptions& options) const {
    return DeviceCompression::Create(*job->state().device, *job->state().device_group, options,
                                     {Shape()});
  }
  absl::StatusOr<std::vector<float>> OnDevice(DeviceCompression& compression,
                                              const std::vector<float>& gradient) const {
    auto* const data = static_cast<float*>(memory->data());
    std::copy(gradient.begin(), gradient.end(), data);
    DT_RETURN_IF_ERROR(compression.Start(0, data));
    DT_RETURN_IF_ERROR(compression.Finish().status());
    DT_RETURN_IF_ERROR(job->state().device_group->JoinStream(job->state().device->stream()));
    return std::vector<float>(data, data + kElements);
  }
  static absl::StatusOr<std::vector<float>> OnHost(comm::BucketReduction& reduction,
                                                   std::vector<float> gradient, int64_t step) {
    DT_RETURN_IF_ERROR(reduction.Start(absl::MakeSpan(gradient), step));
    DT_RETURN_IF_ERROR(comm::AdvanceToEnd(std::vector{&reduction}));
    return gradient;
  }
  std::unique_ptr<Job> job;
  std::shared_ptr<DeviceMemory> memory;
};

void RunOn(int size, Way::Place place,
           const std::function<absl::Status(RankContext& context, const Sums& sums)>& body) {
  SCOPED_TRACE(absl::StrCat(size, " ranks, place ", static_cast<int>(place)));
  comm::FakeFabric fabric;
  const auto results = testing::RunRanks({.size = size}, [&](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    const testing::TempFolder folder;
    FakeGpu gpu(&fabric);
    {
      DT_ASSIGN_OR_RETURN(const Sums sums, Sums::Open(context, folder.path(), place, gpu));
      DT_RETURN_IF_ERROR(body(context, sums));
    }
    const auto wrong = gpu.cuda.violations();
    return wrong.empty() ? absl::OkStatus() : absl::InternalError(wrong.front());
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

comm::CompressionOptions Options(comm::Compression kind, bool error_feedback = true) {
  comm::CompressionOptions options;
  options.kind = kind;
  options.rank = 3;
  options.error_feedback = error_feedback;
  options.start_step = 0;
  options.elements_min = 0;
  options.seed = 5;
  return options;
}

// The largest distance, as a part of the largest number.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  double apart = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
    apart = std::max(apart, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return apart / largest;
}

TEST(DeviceCompressionTest, Int8SumsHaveTheHostsBitsStepAfterStep) {
  for (const Way::Place place : kPlaces) {
    for (const int size : {2, 3}) {
      RunOn(size, place, [](RankContext& context, const Sums& sums) -> absl::Status {
        for (const bool error_feedback : {true, false}) {
          const auto options = Options(comm::Compression::kInt8, error_feedback);
          const auto host = comm::CreateBucketReduction(sums.job->group(), Shape(), options);
          DT_ASSIGN_OR_RETURN(const auto device, sums.Make(options));
          for (int64_t step = 1; step <= 4; ++step) {
            const std::vector<float> gradient = Gradient(context.rank, step);
            DT_ASSIGN_OR_RETURN(const auto expected, Sums::OnHost(*host, gradient, step));
            DT_ASSIGN_OR_RETURN(const auto sum, sums.OnDevice(*device, gradient));
            if (sum != expected) {
              return absl::InternalError(
                  absl::StrCat("step ", step, ": ", Distance(sum, expected), " apart"));
            }
          }
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(DeviceCompressionTest, PowerSgdSumsAreTheHostsButForRounding) {
  for (const Way::Place place : kPlaces) {
    for (const int size : {2, 3}) {
      RunOn(size, place, [](RankContext& context, const Sums& sums) -> absl::Status {
        for (const bool error_feedback : {true, false}) {
          const auto options = Options(comm::Compression::kPowerSgd, error_feedback);
          const auto host = comm::CreateBucketReduction(sums.job->group(), Shape(), options);
          DT_ASSIGN_OR_RETURN(const auto device, sums.Make(options));
          for (int64_t step = 1; step <= 4; ++step) {
            const std::vector<float> gradient = Gradient(context.rank, step);
            DT_ASSIGN_OR_RETURN(const auto expected, Sums::OnHost(*host, gradient, step));
            DT_ASSIGN_OR_RETURN(const auto sum, sums.OnDevice(*device, gradient));
            // Sums of 64 products in fp32, divided by columns that are up to a hundred times
            // shorter than the longest.
            if (const double apart = Distance(sum, expected); !(apart < 1e-3)) {
              return absl::InternalError(absl::StrCat("step ", step, ": ", apart, " apart"));
            }
          }
        }
        return absl::OkStatus();
      });
    }
  }
}

// The device alone knows, and does it.
TEST(DeviceCompressionTest, AStepThatIsNotFiniteLeavesNothingBehindOnAnyRank) {
  for (const comm::Compression kind : {comm::Compression::kInt8, comm::Compression::kPowerSgd}) {
    for (const Way::Place place : kPlaces) {
      RunOn(2, place, [kind](RankContext& context, const Sums& sums) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto used, sums.Make(Options(kind)));
        for (int64_t step = 1; step <= 3; ++step) {
          std::vector<float> gradient = Gradient(context.rank, step);
          if (step == 3 && context.rank == 1) {
            gradient[700] = std::numeric_limits<float>::infinity();
          }
          DT_ASSIGN_OR_RETURN(const auto sum, sums.OnDevice(*used, gradient));
          if (std::isfinite(sum[700]) != (step < 3)) {
            return absl::InternalError(absl::StrCat("step ", step, ": ", sum[700]));
          }
        }
        DT_ASSIGN_OR_RETURN(const auto fresh, sums.Make(Options(kind)));
        for (int64_t step = 4; step <= 5; ++step) {
          const std::vector<float> gradient = Gradient(context.rank, step);
          DT_ASSIGN_OR_RETURN(const auto after, sums.OnDevice(*used, gradient));
          DT_ASSIGN_OR_RETURN(const auto expected, sums.OnDevice(*fresh, gradient));
          if (after != expected) {
            return absl::InternalError(
                absl::StrCat("step ", step, ": ", Distance(after, expected), " apart"));
          }
        }
        return absl::OkStatus();
      });
    }
  }
}

TEST(DeviceCompressionTest, SmallBucketsAndTheFirstStepsTravelAsTheyAre) {
  RunOn(2, Way::Place::kNccl, [](RankContext&, const Sums& sums) -> absl::Status {
    comm::CompressionOptions options = Options(comm::Compression::kInt8);
    options.elements_min = kElements + 1;
    DT_ASSIGN_OR_RETURN(const auto none, sums.Make(options));
    options.elements_min = kElements;
    options.start_step = 7;
    DT_ASSIGN_OR_RETURN(const auto later, sums.Make(options));
    return none == nullptr && !later->takes(0, 7) && later->takes(0, 8)
               ? absl::OkStatus()
               : absl::InternalError("compressed what it should not");
  });
}

Way At(int stage, const std::string& type, std::vector<std::string> more = {}) {
  Way way{.accumulation = 2, .more = std::move(more)};
  for (const std::string& setting :
       {std::string("deterministic=true"), std::string("gradient_clipping=0"),
        absl::StrCat("zero_optimization.stage=", stage),
        absl::StrCat("comm.compression.type=", type), std::string("comm.compression.start_step=2"),
        std::string("comm.compression.min_elements=0"), std::string("comm.compression.rank=2")}) {
    way.more.push_back(setting);
  }
  return way;
}

Way On(Way::Place place, Way way) {
  way.place = place;
  return way;
}

TEST(CompressionOnDeviceTest, Int8TrainsWithTheHostsBitsAndSkipsABadStepAsTheHostDoes) {
  for (const int stage : {0, 1}) {
    for (const int size : {2, 3}) {
      for (const int bad_step : {-1, 3}) {
        if (size == 3 && bad_step == 3) {
          continue;  // Two ranks show it.
        }
        Way host = At(stage, "int8", {"bf16.enabled=true"});
        host.bad_step = bad_step;
        const Outcome expected = OutcomeOf(size, host);
        EXPECT_NE(expected.weights,
                  OutcomeOf(size, At(stage, "none", {"bf16.enabled=true"})).weights);
        for (const Way::Place place : kPlaces) {
          SCOPED_TRACE(absl::StrCat("stage ", stage, ", ", size, " ranks, bad step ", bad_step,
                                    ", place ", static_cast<int>(place)));
          const Outcome device = OutcomeOf(size, On(place, host));
          EXPECT_EQ(device.losses, expected.losses);
          EXPECT_EQ(device.weights, expected.weights);
          EXPECT_EQ(device.skipped, expected.skipped);
          EXPECT_EQ(device.skipped[3], bad_step == 3 ? 1 : 0);
        }
      }
    }
  }
}

TEST(CompressionOnDeviceTest, PowerSgdTrainsAsOnTheHostWithTheSameBitsOnRepeat) {
  for (const int stage : {0, 1}) {
    for (const int size : {2, 3}) {
      const Way host = At(stage, "powersgd");
      const Outcome expected = OutcomeOf(size, host);
      EXPECT_NE(expected.weights, OutcomeOf(size, At(stage, "none")).weights);
      for (const Way::Place place : kPlaces) {
        SCOPED_TRACE(
            absl::StrCat("stage ", stage, ", ", size, " ranks, place ", static_cast<int>(place)));
        const Outcome device = OutcomeOf(size, On(place, host));
        // AdamW turns a difference of 1e-6 of a gradient into this in four steps of 0.01.
        testing::ExpectNear(device, expected, 2e-3);
        ExpectSame(OutcomeOf(size, On(place, host)), device);
      }
    }
  }
}

TEST(CompressionOnDeviceTest, GraphsHoldMicroBatchesAndLeaveCompressionToEagerWork) {
  for (const char* const type : {"int8", "powersgd"}) {
    for (const int stage : {0, 1}) {
      Way way = On(Way::Place::kNccl, At(stage, type));
      const Outcome eager = OutcomeOf(2, way);
      way.more.emplace_back("cuda_graphs=true");
      SCOPED_TRACE(absl::StrCat(type, ", stage ", stage));
      ExpectSame(OutcomeOf(2, way), eager);
    }
  }
}

TEST(CompressionOnDeviceTest, OfOneRankNothingIsCompressed) {
  for (const char* const type : {"int8", "powersgd"}) {
    ExpectSame(OutcomeOf(1, On(Way::Place::kNccl, At(0, type))),
               OutcomeOf(1, On(Way::Place::kNccl, At(0, "none"))));
  }
}

TEST(CompressionOnDeviceTest, AStagedCopyThatFailsEndsTheRunWithItsReason) {
  comm::FakeFabric fabric;
  const auto results = testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
    at::set_num_threads(1);
    FakeGpu gpu(&fabric);
    const testing::TempFolder folder;
    DT_ASSIGN_OR_RETURN(auto job, testing::MakeJob(&context, folder.path(),
                                                   On(Way::Place::kStaged, At(0, "int8")), &gpu));
    testing::Net net;
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, net));
    testing::Source source{context.rank, context.size, 2};
    absl::Status failed;
    for (int i = 0; i < 200 && failed.ok(); ++i) {
      if (i == 4 && context.rank == 1) {
        gpu.cuda.FailCopiesAfter(9);
      }
      failed =
          engine->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); })
              .status();
    }
    const bool named = context.rank != 1 || absl::StrContains(failed.message(), "copy of a staged");
    return !failed.ok() && named
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("ended with ", failed.message()));
  });
  for (const auto& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::device_compression_test
