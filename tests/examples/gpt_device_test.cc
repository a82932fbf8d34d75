// The Transformer over the fake GPU, whose kernels are host loops and whose tensors are the host's:
// a forward waits for nothing.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "gpt/gpt.h"
#include "runtime/ops/device_kernels.h"
#include "tests/examples/small_gpt.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/operation_count.h"

namespace gpt_device_test {
namespace {

using dtrain::testing::WaitingOperations;

class GptDeviceTest : public ::testing::TestWithParam<Architecture> {};

// Rows of 16 tokens: documents of 6 and 10, of 16.
dtrain::Batch PackedBatch() {
  const at::TensorOptions ids(at::kLong);
  return {.tokens = at::randint(61, {2, 16}, ids),
          .targets = at::randint(61, {2, 16}, ids),
          .positions =
              at::cat({at::arange(6, ids), at::arange(10, ids), at::arange(16, ids)}).view({2, 16}),
          .targets_counted = 32,
          .document_lengths = {6, 10, 16}};
}

TEST_P(GptDeviceTest, PackedDocumentsWaitForNothingWhereTheHostKnowsThem) {
  dtrain::comm::FakeCuda cuda;
  at::manual_seed(3);
  Gpt model(SmallGpt(GetParam(), {.head_dim = 8, .intermediate = 48}));
  dtrain::Batch batch = PackedBatch();
  EXPECT_EQ(dtrain::DocumentLengths(batch.positions), batch.document_lengths);
  EXPECT_EQ(batch.graph_inputs().numbers, (std::vector<int64_t>{32, 6, 10, 16}));
  dtrain::ops::SetGpuForTesting(dtrain::testing::FakeKernelTable(&cuda),
                                dtrain::Device::KernelStream(cuda.host_stream()));
  const absl::Cleanup off = [] { dtrain::ops::SetGpuForTesting(nullptr, nullptr); };
  // Counts the waits of forward alone: backward reads the loss's own gradient if that is on the
  // host, and here all tensors are.
  const auto loss_and_waits = [&] {
    const WaitingOperations operations;
    const dtrain::Loss loss = model->Loss(batch);
    return std::make_pair(loss.sum.detach(), WaitingOperations::Count());
  };
  const auto [known, waits] = loss_and_waits();
  EXPECT_EQ(waits, 0);
  batch.document_lengths.clear();
  const auto [read, waits_of_reading] = loss_and_waits();
  EXPECT_EQ(waits_of_reading, 1) << "the documents are in the positions alone";
  EXPECT_TRUE(known.equal(read));
  EXPECT_THAT(cuda.violations(), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, GptDeviceTest,
                         ::testing::Values(Architecture::kGpt2, Architecture::kLlama,
                                           Architecture::kQwen2, Architecture::kQwen3),
                         [](const auto& instance) { return ModelTypeName(instance.param); });

}  // namespace
}  // namespace gpt_device_test
