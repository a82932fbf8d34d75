// The checks of `dtrain bench comm` accept every collective's result, on every kind of memory, and
// count a single wrong element.
#include "comm/tools/bench_cases.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/staged_group.h"
#include "comm/tools/bench_elements.h"
#include "comm/tools/bench_options.h"
#include "tests/testing/cluster.h"
#include "tests/testing/passing_group.h"

namespace dtrain::comm::bench_cases_test {
namespace {

using dtrain::testing::RankContext;

constexpr size_t kBytes = size_t{48} << 10;

// A group whose results all have a wrong lowest bit in the last element.
class WrongGroup final : public dtrain::testing::PassingGroup {
 public:
  using PassingGroup::PassingGroup;
  absl::StatusOr<Work> AllReduce(Buffer buffer, ReduceOp op,
                                 const CollectiveOptions& options) override {
    return Spoil(PassingGroup::AllReduce(buffer, op, options), buffer);
  }
  absl::StatusOr<Work> ReduceScatter(Buffer input, Buffer output, ReduceOp op,
                                     const CollectiveOptions& options) override {
    return Spoil(PassingGroup::ReduceScatter(input, output, op, options), output);
  }
  absl::StatusOr<Work> AllGather(Buffer input, Buffer output,
                                 const CollectiveOptions& options) override {
    return Spoil(PassingGroup::AllGather(input, output, options), output);
  }
  absl::StatusOr<Work> Broadcast(Buffer buffer, int root,
                                 const CollectiveOptions& options) override {
    return Spoil(PassingGroup::Broadcast(buffer, root, options), buffer);
  }
  absl::StatusOr<Work> AllToAll(Buffer input, Buffer output,
                                const CollectiveOptions& options) override {
    return Spoil(PassingGroup::AllToAll(input, output, options), output);
  }
  absl::StatusOr<Work> Receive(Buffer buffer, int peer, const CollectiveOptions& options) override {
    return Spoil(PassingGroup::Receive(buffer, peer, options), buffer);
  }

 private:
  static absl::StatusOr<Work> Spoil(absl::StatusOr<Work> work, const Buffer& result) {
    DT_RETURN_IF_ERROR(work.status());
    DT_RETURN_IF_ERROR(work->Wait());
    auto* const bytes = static_cast<unsigned char*>(result.data);
    bytes[result.bytes - DTypeBytes(result.dtype)] ^= 1;
    return Work();
  }
};

// OK if `setting` gives `wrong` wrong elements.
absl::Status Expect(const BenchSetting& setting, Group& group, BenchMemory& memory, size_t wrong) {
  BenchCase bench(setting, group, memory, kBytes);
  DT_RETURN_IF_ERROR(bench.Fill());
  DT_RETURN_IF_ERROR(bench.Run());
  DT_ASSIGN_OR_RETURN(const size_t found, bench.Wrong());
  return found == wrong ? absl::OkStatus()
                        : absl::InternalError(absl::StrFormat(
                              "%s of %s, %s, %s: %d wrong elements, want %d",
                              BenchName(setting.kind), DTypeName(setting.dtype), OpName(setting.op),
                              setting.in_place ? "in place" : "apart", found, wrong));
}

std::vector<BenchSetting> Settings(bool sends) {
  std::vector<BenchSetting> settings;
  for (const BenchKind kind : AllBenchKinds()) {
    if (kind == BenchKind::kBarrier || (kind == BenchKind::kSendReceive && !sends)) {
      continue;
    }
    for (const bool in_place : {false, true}) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64,
                                DType::kInt32, DType::kInt64}) {
        const bool integer = dtype == DType::kInt32 || dtype == DType::kInt64;
        for (const ReduceOp op :
             {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin}) {
          const bool once =
              Reduces(kind) ? !(integer && op == ReduceOp::kAverage) : op == ReduceOp::kSum;
          if (once && (!in_place || WorksInPlace(kind))) {
            settings.push_back(
                {.kind = kind, .dtype = dtype, .op = op, .root = 1, .in_place = in_place});
          }
        }
      }
    }
  }
  return settings;
}

void RunOn(int size, const dtrain::testing::RankBody& body) {
  for (const auto& result : dtrain::testing::RunRanks({.size = size}, body)) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

TEST(BenchCasesTest, RightResultsHaveNoWrongElementOnPlainAndRegisteredMemory) {
  for (const int size : {2, 3}) {
    RunOn(size, [](RankContext& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, context.group_options()));
      for (const bool registered : {false, true}) {
        DT_ASSIGN_OR_RETURN(auto memory, MakeHostMemory(*group, kBytes, registered));
        for (const BenchSetting& setting : Settings(true)) {
          DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
          DT_RETURN_IF_ERROR(Expect(setting, *group, *memory, 0));
        }
      }
      return group->Barrier(Deadline::Infinite());
    });
  }
}

TEST(BenchCasesTest, RightResultsHaveNoWrongElementOnADevice) {
  RunOn(2, [](RankContext& context) -> absl::Status {
    FakeCuda cuda;
    DT_ASSIGN_OR_RETURN(auto host, CreateHostGroup(context.store, context.group_options()));
    DT_ASSIGN_OR_RETURN(auto group,
                        StagedGroup::Create(std::move(host),
                                            {.cuda = &cuda, .compute_stream = cuda.host_stream()}));
    {
      DT_ASSIGN_OR_RETURN(auto memory,
                          MakeDeviceMemory(*group, cuda, cuda.host_stream(), 0, kBytes, true));
      for (const BenchSetting& setting : Settings(false)) {
        DT_RETURN_IF_ERROR(Expect(setting, *group, *memory, 0));
      }
    }
    group.reset();
    return cuda.violations().empty() ? absl::OkStatus()
                                     : absl::InternalError("CUDA was used wrongly");
  });
}

TEST(BenchCasesTest, AGroupThatAltersOneElementHasOneWrong) {
  RunOn(2, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, context.group_options()));
    WrongGroup spoilt(*group);
    Group& mine = context.rank == 1 ? static_cast<Group&>(spoilt) : *group;
    DT_ASSIGN_OR_RETURN(auto memory, MakeHostMemory(*group, kBytes, false));
    for (const BenchSetting& setting : Settings(true)) {
      // An average is compared with a tolerance, which the lowest bit may be within.
      if (setting.op != ReduceOp::kAverage) {
        DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
        DT_RETURN_IF_ERROR(
            Expect(setting, mine, *memory, static_cast<size_t>(context.rank == 1 ? 1 : 0)));
      }
    }
    return group->Barrier(Deadline::Infinite());
  });
}

TEST(BenchCasesTest, AnElementThatWasNeverWrittenOrIsNoNumberIsWrong) {
  const std::string want = MakeTile(DType::kFloat32, 0, [](size_t) { return 2.0; });
  std::string got = want;
  const float values[] = {-1.0F, std::numeric_limits<float>::quiet_NaN()};
  std::memcpy(got.data() + 40, values, sizeof(values));
  EXPECT_EQ(CountWrong(DType::kFloat32, got.data(), want.data(), 100, 0), 2U);
  EXPECT_EQ(
      CountWrong(DType::kFloat32, got.data(), want.data(), 100, AverageTolerance(DType::kFloat32)),
      2U);
}

TEST(BenchPlanTest, SizesEndWithTheLargestAndIterationsBecomeFewer) {
  BenchPlan plan;
  EXPECT_EQ(plan.Sizes().front(), 8U);
  EXPECT_EQ(plan.Sizes().back(), size_t{1} << 30);
  EXPECT_EQ(plan.IterationsFor(8), 20);
  EXPECT_EQ(plan.IterationsFor(size_t{64} << 20), 5);
  EXPECT_EQ(plan.IterationsFor(size_t{1} << 30), 3);
  plan.iterations = 7;
  EXPECT_EQ(plan.IterationsFor(size_t{1} << 30), 7);
}

TEST(BenchPlanTest, WhatMemoryDoesNotHoldIsLeftOut) {
  BenchPlan plan;
  AvailableMemory memory;
  EXPECT_TRUE(FitIntoMemory(memory, plan).ok());
  EXPECT_EQ(plan.left_out_above, 0U);
  memory.machine_bytes = int64_t{2} << 30;
  EXPECT_TRUE(FitIntoMemory(memory, plan).ok());
  EXPECT_EQ(plan.max_bytes, size_t{128} << 20);
  EXPECT_EQ(plan.left_out_above, plan.max_bytes);
  memory.cgroup_bytes = 1 << 20;
  EXPECT_EQ(FitIntoMemory(memory, plan).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dtrain::comm::bench_cases_test
