// Tensors that a program keeps itself come back from a checkpoint.
#include "runtime/checkpoint/tracked_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::tracked_tensors_test {
namespace {

using testing::Chain;
using ::testing::HasSubstr;

// An average of the weights, and a whole number beside it, on rank 0 of `size` after `until` steps
// from the newest checkpoint in the folder. Fails if ranks differ.
absl::StatusOr<std::vector<double>> Average(int size, const std::string& folder, int until,
                                            at::IntArrayRef shape = {77, 77}) {
  std::vector<double> numbers;
  auto cluster =
      testing::Cluster::Start({.size = size}, [&](testing::RankContext& context) -> absl::Status {
        at::set_num_threads(1);
        DT_ASSIGN_OR_RETURN(auto job,
                            testing::MakeChainJob(&context, folder,
                                                  {.stage = 1, .more = {"checkpoint.interval=2"}}));
        at::manual_seed(4);
        Chain model;
        DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
        const at::Tensor table = model.table.detach().clone();
        const at::Tensor bias = at::zeros({64, 2}).select(1, 1);  // Not contiguous.
        const at::Tensor steps = at::zeros({}, at::kLong);
        const at::Tensor large = at::zeros(shape, at::kBFloat16);
        DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
        checkpoints->Track("engine", *engine);
        checkpoints->Track("average", {{"table", table}, {"bias", bias}});
        checkpoints->Track("more", {{"steps", steps}, {"large", large}});
        DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
        testing::Tokens source{.call = engine->step(), .rank = context.rank, .size = context.size};
        while (engine->step() < until) {
          DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
          const at::NoGradGuard no_grad;
          table.lerp_(model.table, 0.25);
          bias.lerp_(model.biases[2], 0.25);
          steps.add_(1);
          large.add_(0.5);
          DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
        }
        for (const at::Tensor& tensor : {table, bias, steps, large}) {
          numbers.push_back(tensor.to(at::kDouble).square().sum().item<double>());
        }
        return context.store->Set(absl::StrCat("numbers/", context.rank), DumpJson(Json(numbers)),
                                  Deadline::After(absl::Seconds(10)));
      });
  DT_RETURN_IF_ERROR(cluster.status());
  std::vector<std::string> texts;
  for (int rank = 0; rank < size; ++rank) {
    texts.push_back((*cluster)->Result(absl::StrCat("numbers/", rank)).value_or("[]"));
  }
  for (const auto& result : (*cluster)->Join()) {
    DT_RETURN_IF_ERROR(result.status);
  }
  if (texts.front() != texts.back()) {
    return absl::InternalError(absl::StrCat(texts.front(), " and ", texts.back()));
  }
  return ParseJson(texts.front(), "numbers")->get<std::vector<double>>();
}

TEST(TrackedTensorsTest, AreRestoredByAnyNumberOfRanks) {
  const testing::TempFolder first;
  const auto straight = Average(2, first.path(), 4);
  ASSERT_TRUE(straight.ok()) << straight.status();
  ASSERT_EQ(straight->size(), 4U);
  EXPECT_EQ(straight->at(2), 16);
  EXPECT_EQ(straight->at(3), 4 * 77 * 77);
  for (const int size : {1, 2, 3}) {
    const testing::TempFolder folder;
    ASSERT_TRUE(Average(2, folder.path(), 2).ok());
    const auto restored = Average(size, folder.path(), 2);  // No step follows.
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(restored->at(2), 4);
    EXPECT_EQ(restored->at(3), 77 * 77);
    const auto resumed = Average(size, folder.path(), 4);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    for (size_t i = 0; i < straight->size(); ++i) {
      EXPECT_NEAR(resumed->at(i), straight->at(i), 1e-4 * straight->at(i)) << size << ", " << i;
    }
  }
}

TEST(TrackedTensorsTest, OneOfAnotherShapeIsRefusedByName) {
  const testing::TempFolder folder;
  ASSERT_TRUE(Average(1, folder.path(), 2).ok());
  const absl::Status refused = Average(1, folder.path(), 4, {77, 7}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("holds the tensor \"tracked/more/large\" as bf16 [77, 77], and the program "
                        "tracks bf16 [77, 7]"));
}

}  // namespace
}  // namespace dtrain::tracked_tensors_test
