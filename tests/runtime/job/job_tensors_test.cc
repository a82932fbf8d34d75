// Collectives on tensors of the program's own, and means over ranks in the records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "dtrain/job.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::job_tensors_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::RankContext;

absl::Status Expect(bool good, const std::string& what) {
  return good ? absl::OkStatus() : absl::InternalError(what);
}

using JobBody = std::function<absl::Status(Job& job)>;

std::vector<absl::Status> OnRanks(int size, const JobBody& body) {
  std::vector<absl::Status> statuses;
  for (const auto& result : testing::RunRanks({.size = size}, [&](RankContext& context) {
         at::set_num_threads(1);
         const testing::TempFolder folder;
         auto job = testing::MakeTestJob({.run_dir = folder.path(),
                                          .overrides = {"train_micro_batch_size_per_gpu=1"},
                                          .rank = &context});
         return job.ok() ? body(**job) : job.status();
       })) {
    statuses.push_back(result.status);
  }
  return statuses;
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

std::vector<std::string> MessagesOf(const std::vector<absl::Status>& statuses) {
  std::vector<std::string> messages;
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    messages.emplace_back(status.message());
  }
  return messages;
}

class JobTensors : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, JobTensors, ::testing::Values(1, 2, 3));

// Rank r gives the values r + 1 + i.
TEST_P(JobTensors, AllReduceJoinsTheValuesOfAllRanks) {
  const int size = GetParam();
  ExpectAllOk(OnRanks(size, [size](Job& job) -> absl::Status {
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt}) {
      const at::Tensor steps = at::arange(4, at::kLong);
      const at::Tensor mine = steps + job.rank() + 1;
      const at::Tensor sum = steps * size + size * (size + 1) / 2;
      const auto check = [&](Reduction reduction, const at::Tensor& expected) -> absl::Status {
        const at::Tensor values = mine.to(type, /*non_blocking=*/false, /*copy=*/true).view({2, 2});
        DT_RETURN_IF_ERROR(job.AllReduce(values, reduction));
        return Expect(at::allclose(values.to(at::kDouble), expected.to(at::kDouble).view({2, 2})),
                      absl::StrCat(c10::toString(type), " ", static_cast<int>(reduction)));
      };
      DT_RETURN_IF_ERROR(check(Reduction::kSum, sum));
      DT_RETURN_IF_ERROR(check(Reduction::kMin, steps + 1));
      DT_RETURN_IF_ERROR(check(Reduction::kMax, steps + size));
      if (c10::isFloatingType(type)) {
        DT_RETURN_IF_ERROR(check(Reduction::kMean, sum.to(at::kDouble) / size));
      }
    }
    return absl::OkStatus();
  }));
}

TEST_P(JobTensors, ViewsScalarsLargeAndEmptyTensorsAreTakenToo) {
  const int size = GetParam();
  ExpectAllOk(OnRanks(size, [size](Job& job) -> absl::Status {
    const at::Tensor whole = at::ones({3, 4});
    DT_RETURN_IF_ERROR(job.AllReduce(whole.t().select(0, 1)));  // A column.
    at::Tensor expected = at::ones({3, 4});
    expected.select(1, 1).fill_(size);
    DT_RETURN_IF_ERROR(Expect(at::equal(whole, expected), "a view"));
    const at::Tensor scalar = at::scalar_tensor(2.0);
    DT_RETURN_IF_ERROR(job.AllReduce(scalar));
    DT_RETURN_IF_ERROR(Expect(scalar.item<double>() == 2.0 * size, "a scalar"));
    const at::Tensor large = at::arange(600'000, at::kLong) * (job.rank() + 1);  // Several blocks.
    DT_RETURN_IF_ERROR(job.AllReduce(large));
    DT_RETURN_IF_ERROR(Expect(
        at::equal(large, at::arange(600'000, at::kLong) * (size * (size + 1) / 2)), "a large one"));
    const at::Tensor weight = at::ones({2}).requires_grad_(true);
    DT_RETURN_IF_ERROR(job.AllReduce(weight));
    DT_RETURN_IF_ERROR(Expect(weight.is_leaf() && weight[0].item<double>() == size, "a weight"));
    return job.AllReduce(at::empty({0, 3}));
  }));
}

TEST_P(JobTensors, BroadcastGivesAllRanksTheRootsValues) {
  const int size = GetParam();
  ExpectAllOk(OnRanks(size, [size](Job& job) -> absl::Status {
    for (int root = 0; root < size; ++root) {
      for (const at::ScalarType type : {at::kFloat, at::kBool, at::kByte, at::kComplexFloat}) {
        const at::Tensor values = (at::arange(4, at::kLong).view({2, 2}) + job.rank())
                                      .remainder(3)
                                      .to(type)
                                      .t();  // Not contiguous.
        const at::Tensor expected =
            (at::arange(4, at::kLong).view({2, 2}) + root).remainder(3).to(type).t();
        DT_RETURN_IF_ERROR(job.Broadcast(values, root));
        DT_RETURN_IF_ERROR(Expect(at::equal(values, expected), c10::toString(type)));
      }
    }
    return job.Barrier();
  }));
}

TEST(JobTensorsMistakes, AreNamedOnAllRanks) {
  EXPECT_THAT(MessagesOf(OnRanks(
                  3, [](Job& job) { return job.AllReduce(at::zeros({job.rank() == 2 ? 3 : 2})); })),
              Each(::testing::AllOf(HasSubstr("Job::AllReduce got a tensor [2] of Float"),
                                    HasSubstr("a tensor [3] of Float"), HasSubstr("on rank 2"))));
  EXPECT_THAT(
      MessagesOf(OnRanks(
          2, [](Job& job) { return job.AllReduce(at::zeros({2}, at::kLong), Reduction::kMean); })),
      Each(HasSubstr("cannot take the mean of Long")));
  EXPECT_THAT(MessagesOf(OnRanks(2, [](Job& job) { return job.AllReduce(at::Tensor()); })),
              Each(HasSubstr("an undefined tensor on every rank")));
  EXPECT_THAT(MessagesOf(OnRanks(2, [](Job& job) { return job.Broadcast(at::zeros({2}), 2); })),
              Each(HasSubstr("got the root 2; allowed: 0 to 1")));
}

TEST_P(JobTensors, LogMeanWeighsEachRankAndRankZeroRecordsIt) {
  const int size = GetParam();
  ExpectAllOk(OnRanks(size, [size](Job& job) -> absl::Status {
    const int rank = job.rank();
    DT_ASSIGN_OR_RETURN(double mean, job.metrics().LogMean("own/mean", rank));
    DT_RETURN_IF_ERROR(Expect(mean == (size - 1) / 2.0, absl::StrCat("mean ", mean)));
    // Rank r has r + 1 samples of value r.
    double sum = 0;
    for (int r = 0; r < size; ++r) {
      sum += r * (r + 1.0);
    }
    DT_ASSIGN_OR_RETURN(mean, job.metrics().LogMean("own/weighted", rank, rank + 1));
    DT_RETURN_IF_ERROR(
        Expect(std::abs(mean - sum / (size * (size + 1) / 2)) < 1e-12, absl::StrCat(mean)));
    // A rank without samples may give no number.
    DT_ASSIGN_OR_RETURN(mean, job.metrics().LogMean("own/first", rank == 0 ? 4.5 : std::nan(""),
                                                    rank == 0 ? 2 : 0));
    DT_RETURN_IF_ERROR(Expect(mean == 4.5, absl::StrCat(mean)));
    DT_ASSIGN_OR_RETURN(mean, job.metrics().LogMean("own/none", 1, 0));
    DT_RETURN_IF_ERROR(Expect(std::isnan(mean), absl::StrCat(mean)));
    job.metrics().Flush();
    DT_ASSIGN_OR_RETURN(const std::string records,
                        ReadFile(absl::StrCat(job.run_dir(), "/metrics/rank-", rank, ".jsonl")));
    return Expect(absl::StrContains(records, "\"own/first\":4.5") == (rank == 0), records);
  }));
}

TEST(LogMeanMistakes, AreNamedOnAllRanks) {
  EXPECT_THAT(
      MessagesOf(OnRanks(
          2,
          [](Job& job) { return job.metrics().LogMean(job.rank() == 0 ? "a" : "b", 1).status(); })),
      Each(HasSubstr("got \"a\" on rank 0 and \"b\" on rank 1")));
  EXPECT_THAT(MessagesOf(OnRanks(
                  2, [](Job& job) { return job.metrics().LogMean("a", 1, -job.rank()).status(); })),
              Each(HasSubstr("the weight -1 on rank 1")));
}

}  // namespace
}  // namespace dtrain::job_tensors_test
