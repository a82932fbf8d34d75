// Activations of a GPU's rank in page-locked memory of the host, over the fakes: the bits of
// activations that stay, on streams that are threads and start late, so that what does not wait for
// a copy is wrong; nothing waits on the host; a copy that fails ends the step with its reason.
#include "runtime/offload/device_activations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/recompute.h"
#include "tests/runtime/testing/device_net.h"
#include "tests/runtime/testing/device_training.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::device_activations_test {
namespace {

using testing::ExpectSame;
using testing::FakeGpu;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeJob;
using testing::Net;
using testing::Outcome;
using testing::OutcomeOf;
using testing::Source;
using testing::Way;
using testing::With;

const char* const kFar = "activation_checkpointing.cpu_checkpointing=true";
const char* const kWaits = "activation_checkpointing.synchronize_checkpoint_boundary=true";

// Bytes of what the segments of one micro-batch keep.
int64_t KeptBytes(const Way& way, int ranks, int64_t width) {
  return Net::kSegments * (24 / ranks / way.accumulation) * Net::kCopies * 64 * width;
}

TEST(DeviceActivationsTest, TrainsToTheBitsOfActivationsThatStayAtEveryStage) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const char* const precision : {"bf16.enabled=false", "bf16.enabled=true"}) {
      const int64_t width = precision == std::string("bf16.enabled=true") ? 2 : 4;
      const int ranks = 1 + stage % 2;
      Way near{.place = Way::Place::kNccl,
               .accumulation = 2,
               .segments = true,
               .more = {precision, absl::StrCat("zero_optimization.stage=", stage)}};
      if (stage == 3) {  // Segments gather what they read, forward and again.
        near.more.emplace_back("zero_optimization.stage3_param_persistence_threshold=100");
      }
      SCOPED_TRACE(absl::StrCat(precision, ", ", ranks, " ranks, stage ", stage));
      const Outcome expected = OutcomeOf(ranks, near);
      EXPECT_NE(expected.losses.front(), expected.losses.back());
      EXPECT_EQ(expected.far, 0);
      for (const Way& far : {With(near, {kFar}), With(near, {kFar, kWaits})}) {
        const Outcome outcome = OutcomeOf(ranks, far);
        ExpectSame(outcome, expected);
        EXPECT_EQ(outcome.far, KeptBytes(near, ranks, width));
        EXPECT_EQ(outcome.waits, expected.waits);
      }
    }
  }
}

TEST(DeviceActivationsTest, LossScalesStagedGroupsAndRefusedGraphsGiveTheSameBits) {
  const Way base{.place = Way::Place::kNccl, .steps = 8, .segments = true};
  Way scaled = With(base, {"fp16.enabled=true", "fp16.initial_scale_power=21"});
  scaled.waits = true;  // A skipped step is looked into.
  const Outcome expected = OutcomeOf(1, scaled);
  EXPECT_EQ(expected.skipped.front(), 1) << "the test needs an overflow";
  const Outcome outcome = OutcomeOf(1, With(scaled, {kFar}));
  ExpectSame(outcome, expected);
  EXPECT_EQ(outcome.skipped, expected.skipped);
  Way staged = With(base, {"zero_optimization.stage=3",
                           "zero_optimization.stage3_param_persistence_threshold=100"});
  staged.place = Way::Place::kStaged;
  ExpectSame(OutcomeOf(2, With(staged, {kFar})), OutcomeOf(2, staged));
  ExpectSame(OutcomeOf(1, With(base, {kFar, "cuda_graphs=true"})), OutcomeOf(1, base));
}

TEST(DeviceActivationsTest, ANonFiniteStepChangesNothing) {
  const Way near{.place = Way::Place::kNccl, .bad_step = 2, .segments = true};
  const Outcome expected = OutcomeOf(2, near);
  const Outcome outcome = OutcomeOf(2, With(near, {kFar}));
  EXPECT_EQ(outcome.skipped[2], 1);
  EXPECT_EQ(outcome.skipped, expected.skipped);
  EXPECT_EQ(outcome.weights, expected.weights);
}

// The tests from here on train in this process, since no later test forks: a forked child would
// miss this process's threads.

// One step where all copies to and from page-locked memory after the first `copies` fail; handles
// that are left.
absl::Status StepWithCopies(int64_t copies, int& handles) {
  comm::FakeFabric fabric;
  FakeGpu gpu(&fabric);
  absl::Status status;
  {
    const testing::TempFolder folder;
    auto job = MakeJob(nullptr, folder.path(), {.place = Way::Place::kNccl, .more = {kFar}}, &gpu);
    DT_RETURN_IF_ERROR(job.status());
    Net net(/*segments=*/true);
    DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(**job, net));
    gpu.cuda.FailCopiesAfter(copies);
    Source source{0, 1, 1};
    const auto loss = [&](const at::Tensor& x) { return Loss(net.LossOfSegments(x), x.size(0)); };
    status = engine->Step(source, loss).status();
  }
  handles = gpu.cuda.live_handles();
  EXPECT_THAT(gpu.cuda.violations(), IsEmpty());
  return status;
}

TEST(DeviceActivationsTest, ACopyThatFailsEndsTheStepWithItsReasonAndLeavesNoHandle) {
  int before = 0;
  ASSERT_EQ(StepWithCopies(1 << 20, before), absl::OkStatus());
  int64_t copies = 0;
  absl::Status status = absl::InternalError("none was tried");
  for (; copies < 100 && !status.ok(); ++copies) {
    int handles = 0;
    status = StepWithCopies(copies, handles);
    EXPECT_EQ(handles, before) << copies;
    if (!status.ok()) {
      EXPECT_THAT(status.message(), HasSubstr("fake CUDA error 719")) << copies;
    }
  }
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(copies, Net::kSegments) << "out, and back";
}

// A store whose compute stream is a thread, as a GPU's is.
class ActivationsOnAStream : public ::testing::Test {
 protected:
  void SetUp() override { Make(/*wait_written=*/false); }
  void TearDown() override {
    store_.reset();
    EXPECT_THAT(cuda_.violations(), IsEmpty());
  }
  void Make(bool wait_written) {
    store_.reset();
    CudaParts parts;
    parts.api = &cuda_;
    parts.kernels = testing::FakeKernelTable(&cuda_);
    if (compute_ == nullptr) {
      ASSERT_EQ(cuda_.StreamCreate(&compute_, false), comm::CudaResult::kSuccess);
    }
    parts.compute_stream = compute_;
    parts.tensors = at::Device(at::kCPU);
    device_ = std::make_unique<Device>(parts);
    ActivationCheckpointingConfig config;
    config.tier = ActivationCheckpointingConfig::Tier::kMemory;
    config.wait_written = wait_written;
    auto made = ActivationStore::For(config, *device_);
    ASSERT_TRUE(made.ok()) << made.status();
    store_ = *std::move(made);
  }
  // An intermediate result of a graph.
  static at::Tensor Activation(at::IntArrayRef sizes = {64, 32}, at::ScalarType type = at::kFloat) {
    return at::randn(sizes, at::TensorOptions(type)).requires_grad_().mul(3);
  }
  // By the device, when it comes to it.
  void FillLater(const at::Tensor& tensor, float value) {
    auto* const data = static_cast<float*>(tensor.mutable_data_ptr());
    (void)cuda_.Enqueue(compute_,
                        [data, value, count = tensor.numel()] { std::fill_n(data, count, value); });
  }
  void CompareLater(const at::Tensor& tensor, float value) {
    const auto* const data = static_cast<const float*>(tensor.const_data_ptr());
    (void)cuda_.Enqueue(compute_, [this, data, value, count = tensor.numel()] {
      wrong_ += static_cast<int>(count - std::count(data, data + count, value));
    });
  }
  void Synchronize() { EXPECT_EQ(cuda_.StreamSynchronize(compute_), comm::CudaResult::kSuccess); }

  comm::FakeCuda cuda_;
  comm::CudaStream* compute_ = nullptr;
  std::unique_ptr<Device> device_;
  std::shared_ptr<ActivationStore> store_;
  std::atomic<int> wrong_{0};
};

TEST_F(ActivationsOnAStream, CopiesFollowTheComputeStreamAndItFollowsThemWhileNoHostWaits) {
  constexpr size_t kCount = 7;
  cuda_.SlowDown(std::chrono::microseconds(300));
  std::atomic<bool> go{false};
  (void)cuda_.Enqueue(compute_, [&] {
    while (!go) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> back;
  std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
  for (size_t i = 0; i < kCount; ++i) {
    tensors.push_back(Activation());
    FillLater(tensors[i], static_cast<float>(i));
    kept.push_back(store_->Put(tensors[i]));
    if (i >= 2) {  // Its memory is anyone's, in the order of the compute stream.
      FillLater(tensors[i - 2], -1);
    }
  }
  for (size_t i = kCount; i-- > 0;) {
    back.push_back(store_->Get(kept[i]));
    CompareLater(back.back(), static_cast<float>(i));
    kept.pop_back();
  }
  kept.push_back(store_->Put(tensors[0]));  // Into memory that may still be read.
  EXPECT_EQ(cuda_.synchronizations(), 0);
  go = true;
  Synchronize();
  store_->Settle();  // The last copy still reads its tensor.
  EXPECT_EQ(wrong_, 0);
  EXPECT_EQ(store_->status(), absl::OkStatus());
}

TEST_F(ActivationsOnAStream, GivesBackBitsTypesAndStridesInAnyOrderAndTwice) {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> copies;
  std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
  for (int i = 0; i < 12; ++i) {
    tensors.push_back(Activation({40 + i, 64}, i % 3 == 0 ? at::kBFloat16 : at::kFloat));
    if (i % 2 == 1) {
      tensors.back() = tensors.back().t();
    }
    copies.push_back(tensors.back().detach().clone());
    ASSERT_TRUE(store_->Takes(tensors.back())) << i;
    kept.push_back(store_->Put(tensors.back()));
  }
  for (const int i : {11, 10, 3, 4, 0, 11, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}) {
    const auto at = static_cast<size_t>(i);
    const at::Tensor back = store_->Get(kept[at]);
    Synchronize();
    EXPECT_TRUE(back.equal(copies[at])) << i;
    EXPECT_EQ(back.strides(), tensors[at].strides()) << i;
    EXPECT_EQ(back.scalar_type(), tensors[at].scalar_type()) << i;
    EXPECT_FALSE(back.requires_grad());
  }
  store_->Settle();
  kept.clear();
  EXPECT_EQ(store_->far_bytes(), 0);
  EXPECT_EQ(store_->status(), absl::OkStatus());
}

TEST_F(ActivationsOnAStream, OnlyThoseOnTheirWayAreNear) {
  for (const bool wait_written : {false, true}) {
    Make(wait_written);
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory;
    std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
    for (int i = 0; i < 6; ++i) {
      const at::Tensor tensor = Activation();
      memory.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
          tensor.storage().unsafeGetStorageImpl()));
      kept.push_back(store_->Put(tensor));
      Synchronize();  // The fake's memory is the heap's, which knows no stream.
      store_->Settle();
    }
    const auto near = std::count_if(memory.begin(), memory.end(),
                                    [](const auto& storage) { return !storage.expired(); });
    EXPECT_EQ(near, wait_written ? 0 : 2);
    EXPECT_EQ(store_->far_bytes(), 6 * 64 * 32 * 4);
  }
}

TEST_F(ActivationsOnAStream, PageLockedMemoryIsUsedAgain) {
  int handles = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<at::Tensor> tensors;
    std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
    for (int i = 0; i < 4; ++i) {  // A little shorter each time.
      tensors.push_back(Activation({64 - round, 32}));
      kept.push_back(store_->Put(tensors.back()));
    }
    for (size_t i = 4; i-- > 0;) {
      tensors.push_back(store_->Get(kept[i]));
    }
    Synchronize();
    store_->Settle();
    handles = round == 0 ? cuda_.live_handles() : handles;
    EXPECT_EQ(cuda_.live_handles(), handles) << round;
  }
}

TEST_F(ActivationsOnAStream, PageLockedMemoryIsBoundedWhereEachBatchIsLonger) {
  constexpr size_t kLayers = 4;
  cuda_.SlowDown(std::chrono::microseconds(100));  // Memory is given up while copies are under way.
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> back;
  for (int64_t round = 0; round < 13; ++round) {
    std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
    for (size_t i = 0; i < kLayers; ++i) {  // Most rounds want memory of a size of their own.
      tensors.push_back(Activation({64 + 12 * round, 256}));
      kept.push_back(store_->Put(tensors.back()));
    }
    for (size_t i = kLayers; i-- > 0;) {
      back.push_back(store_->Get(kept[i]));
      kept.pop_back();
    }
    // An eighth for the sizes that there are.
    EXPECT_LE(cuda_.pinned_bytes(), 2 * kLayers * tensors.back().nbytes() * 9 / 8) << round;
  }
  const size_t before = cuda_.pinned_bytes();
  for (int64_t round = 12; round > 6; --round) {  // Shorter ones find memory that fits.
    tensors.push_back(Activation({64 + 12 * round, 256}));
    auto kept = store_->Put(tensors.back());
    back.push_back(store_->Get(kept));
  }
  EXPECT_EQ(cuda_.pinned_bytes(), before);
  Synchronize();
  store_->Settle();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t of_round = i / kLayers * kLayers;
    const bool last = of_round >= 13 * kLayers;
    EXPECT_TRUE(back[last ? i : of_round + kLayers - 1 - i % kLayers].equal(tensors[i])) << i;
  }
  EXPECT_EQ(store_->status(), absl::OkStatus());
}

TEST_F(ActivationsOnAStream, WhatIsCapturedStaysNear) {
  const at::Tensor tensor = Activation();
  ASSERT_EQ(cuda_.StreamBeginCapture(compute_), comm::CudaResult::kSuccess);
  auto kept = store_->Put(tensor);
  EXPECT_EQ(store_->Get(kept).const_data_ptr(), tensor.const_data_ptr());
  EXPECT_EQ(store_->far_bytes(), 0);
  kept.reset();
  comm::CudaGraph* graph = nullptr;
  EXPECT_EQ(cuda_.StreamEndCapture(compute_, &graph), comm::CudaResult::kSuccess);
  EXPECT_EQ(cuda_.GraphDestroy(graph), comm::CudaResult::kSuccess);
  EXPECT_EQ(store_->status(), absl::OkStatus());
}

TEST_F(ActivationsOnAStream, WhatCannotBeCopiedStaysAndWhatCannotComeBackIsZeros) {
  const at::Tensor first = Activation();
  const at::Tensor second = Activation();
  Make(/*wait_written=*/true);
  cuda_.FailCopiesAfter(1);
  const auto far = store_->Put(first);
  EXPECT_EQ(store_->status(), absl::OkStatus());
  const auto near = store_->Put(second);
  EXPECT_THAT(store_->status().message(), HasSubstr("fake CUDA error 719"));
  EXPECT_TRUE(store_->Get(near).equal(second));
  EXPECT_TRUE(store_->Get(far).equal(at::zeros_like(first)));
  EXPECT_EQ(store_->far_bytes(), 0);
  Synchronize();
  store_->Settle();
}

TEST_F(ActivationsOnAStream, AStoreIsSharedByEnginesOfTheDeviceAndNotWithTheHost) {
  ActivationCheckpointingConfig config;
  config.tier = ActivationCheckpointingConfig::Tier::kMemory;
  const std::unique_ptr<Device> again = device_->Again();
  EXPECT_EQ(*ActivationStore::For(config, *again), store_);
  const auto on_host = *ActivationStore::For(config, Device());
  EXPECT_NE(on_host, store_);
  EXPECT_EQ(ActivationStore::Current(), on_host);
}

TEST_F(ActivationsOnAStream, AGraphThatIsDroppedOrEvaluatedLeavesNothingFar) {
  const auto layer = [](const at::Tensor& in) { return in.sin() * in; };
  {
    const at::Tensor x = at::randn({64, 32}).requires_grad_();
    const at::Tensor y = Recompute(layer, Recompute(layer, x * 2));
    EXPECT_EQ(store_->far_bytes(), 2 * 64 * 32 * 4);
    Synchronize();
    store_->Settle();
  }
  EXPECT_EQ(store_->far_bytes(), 0);
  const at::NoGradGuard evaluation;
  const at::Tensor y = Recompute(layer, at::randn({64, 32}));
  EXPECT_EQ(store_->far_bytes(), 0);
}

}  // namespace
}  // namespace dtrain::device_activations_test
