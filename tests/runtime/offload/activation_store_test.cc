// Tensors that recomputed segments keep in a far tier: the same bits whatever the tier, near memory
// given back, and the errors of a tier that cannot work.
#include "runtime/offload/activation_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "dtrain/recompute.h"
#include "runtime/optimizer/engine_state.h"
#include "runtime/plan/memory/offload_plan.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "torch/nn/module.h"

namespace dtrain::activation_store_test {
namespace {

using ::testing::HasSubstr;
using Tier = ActivationCheckpointingConfig::Tier;

constexpr int64_t kRows = 128;
constexpr int64_t kWidth = 32;
constexpr int64_t kInputBytes = 4 * kRows * kWidth;

// Places for five inputs: the thread may still have some of the micro-batch before.
constexpr int64_t kPlacesMax = 5 + plan::kActivationsInFlight + 1;

ActivationCheckpointingConfig In(const std::string& folder, bool wait_written = false) {
  ActivationCheckpointingConfig config;
  config.tier = folder.empty() ? Tier::kMemory : Tier::kFile;
  config.nvme_path = folder;
  config.wait_written = wait_written;
  return config;
}

std::shared_ptr<ActivationStore> Make(const ActivationCheckpointingConfig& config) {
  static const Device host;
  auto store = ActivationStore::For(config, host);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

// An intermediate result of a graph.
at::Tensor Activation(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  return at::randn(sizes, at::TensorOptions(type)).requires_grad_().mul(3);
}

TEST(ActivationStore, WhatIsOnAnotherDeviceIsRefusedByItsName) {
  const auto store = Make(In(""));
  const auto run = [] {
    const at::Tensor x = at::empty({kRows, kWidth}, at::TensorOptions(at::kMeta)).requires_grad_();
    Recompute([](const at::Tensor& h) { return h * 2; }, x * 3);
  };
  EXPECT_THAT(run, ::testing::ThrowsMessage<std::exception>(
                       ::testing::AllOf(HasSubstr("an input of a recomputed segment is on meta"),
                                        HasSubstr("activation_checkpointing.cpu_checkpointing"))));
  EXPECT_EQ(store->far_bytes(), 0);
}

TEST(ActivationStore, WhatMustStayNearIsSaidOnce) {
  const auto store = Make(In(""));
  const at::Tensor wide = Activation({kRows, 2 * kWidth});
  const auto run = [&](const at::Tensor& input) {
    ::testing::internal::CaptureStderr();
    const at::Tensor result = Recompute([](const at::Tensor& h) { return h * 2; }, input);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(run(wide), "");
  EXPECT_EQ(run(wide[0].detach()), "") << "nothing is lost by it";
  EXPECT_THAT(
      run(wide.narrow(1, 0, kWidth)),
      ::testing::AllOf(HasSubstr("stays in memory: 16384 bytes"), HasSubstr("contiguous()")));
  EXPECT_EQ(run(wide.narrow(1, 0, kWidth)), "") << "once";
}

TEST(ActivationStore, GivesBackBitsTypesAndStridesInAnyOrderAndTwice) {
  const testing::TempFolder folder;
  for (const std::string& where : {std::string(), folder.path()}) {
    const auto store = Make(In(where));
    std::vector<at::Tensor> tensors;
    std::vector<at::Tensor> copies;
    std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
    for (int i = 0; i < 12; ++i) {
      tensors.push_back(Activation({40 + i, 64}, i % 3 == 0 ? at::kBFloat16 : at::kFloat));
      if (i % 2 == 1) {
        tensors.back() = tensors.back().t();
      }
      copies.push_back(tensors.back().detach().clone());
      ASSERT_TRUE(store->Takes(tensors.back())) << i;
      kept.push_back(store->Put(tensors.back()));
    }
    for (const int i : {11, 10, 3, 4, 0, 11, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}) {
      const auto at = static_cast<size_t>(i);
      const at::Tensor back = store->Get(kept[at]);
      EXPECT_TRUE(back.equal(copies[at])) << i;
      EXPECT_EQ(back.strides(), tensors[at].strides()) << i;
      EXPECT_EQ(back.scalar_type(), tensors[at].scalar_type()) << i;
      EXPECT_FALSE(back.requires_grad());
    }
    EXPECT_TRUE(store->status().ok()) << store->status();
    EXPECT_GT(store->far_bytes(), 0);
    kept.clear();
    store->Settle();
    EXPECT_EQ(store->far_bytes(), 0);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the file has no name";
  }
}

TEST(ActivationStore, WhatIsFarIsNoLongerNear) {
  const testing::TempFolder folder;
  for (const std::string& where : {std::string(), folder.path()}) {
    const auto store = Make(In(where, /*wait_written=*/true));
    const at::Tensor tensor = Activation({kRows, kWidth});
    const auto kept = store->Put(tensor);
    EXPECT_EQ(tensor.storage().use_count(), 1U) << "the store holds it still";
    EXPECT_EQ(store->far_bytes(), kInputBytes);
    EXPECT_TRUE(store->Get(kept).equal(tensor));
  }
}

TEST(ActivationStore, APlaceInTheFileIsUsedAgain) {
  const testing::TempFolder folder;
  const auto store = Make(In(folder.path()));
  for (int step = 0; step < 100; ++step) {
    std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
    for (int i = 0; i < 5; ++i) {
      kept.push_back(store->Put(Activation({kRows, kWidth})));
    }
    while (!kept.empty()) {
      store->Get(kept.back());
      kept.pop_back();
    }
  }
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (absl::StartsWith(target.string(), folder.path())) {
      bytes = static_cast<int64_t>(std::filesystem::file_size(entry.path()));
    }
  }
  EXPECT_LE(bytes, kPlacesMax * kInputBytes);
  EXPECT_GE(store->TakePeakFarBytes(), 5 * kInputBytes);
  EXPECT_LE(store->TakePeakFarBytes(), (kPlacesMax - 5) * kInputBytes);
}

TEST(ActivationStore, TakesWhatItCanGiveBackAsItWas) {
  const auto store = Make(In(""));
  EXPECT_TRUE(store->Takes(Activation({kRows, kWidth})));
  EXPECT_FALSE(store->Takes(Activation({8, 8}))) << "small";
  EXPECT_FALSE(store->Takes(at::randn({kRows, kWidth}).requires_grad_())) << "a leaf";
  EXPECT_FALSE(store->Takes(at::ones({kRows, kWidth}, at::kLong))) << "token ids";
  EXPECT_FALSE(store->Takes(Activation({kRows, kWidth}).slice(1, 0, 30))) << "gaps";
  EXPECT_FALSE(store->Takes(Activation({2 * kRows * kWidth + 1}).slice(0, 1)))
      << "another alignment may be another kernel";
}

TEST(ActivationStore, IsSharedByEqualSettingsAndGoneWithItsUsers) {
  const testing::TempFolder folder;
  EXPECT_EQ(ActivationStore::Current(), nullptr);
  {
    const auto first = Make(In(folder.path()));
    EXPECT_EQ(Make(In(folder.path())), first);
    EXPECT_EQ(ActivationStore::Current(), first);
    EXPECT_NE(Make(In("")), first);
  }
  EXPECT_EQ(ActivationStore::Current(), nullptr);
  EXPECT_EQ(Make(ActivationCheckpointingConfig()), nullptr);
}

TEST(ActivationStore, AFolderThatIsNoneIsNamed) {
  const testing::TempFolder folder;
  for (const std::string& path : {std::string("/nowhere/at/all"), folder.path() + "/none"}) {
    const auto store = ActivationStore::For(In(path), Device());
    EXPECT_EQ(store.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(store.status().message()),
                HasSubstr(absl::StrCat("activation_checkpointing.nvme_path \"", path, "\"")));
  }
}

// Limits the size of files, which for this process is like a full disk.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() { setrlimit(RLIMIT_FSIZE, &before_); }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  rlimit before_ = {};
};

TEST(ActivationStore, WhatAFullDiskCannotTakeStaysNearAndIsSaid) {
  const testing::TempFolder folder;
  const auto store = Make(In(folder.path()));
  const SmallDisk disk(2 * kInputBytes);
  std::vector<at::Tensor> copies;
  std::vector<std::shared_ptr<ActivationStore::Kept>> kept;
  for (int i = 0; i < 4; ++i) {
    const at::Tensor tensor = Activation({kRows, kWidth});
    copies.push_back(tensor.detach().clone());
    kept.push_back(store->Put(tensor));
  }
  EXPECT_EQ(store->far_bytes(), 2 * kInputBytes);
  EXPECT_THAT(std::string(store->status().message()),
              HasSubstr(absl::StrCat("activation_checkpointing.nvme_path \"", folder.path(),
                                     "\": ", 3 * kInputBytes, " bytes cannot be reserved there")));
  for (size_t i = 4; i-- > 0;) {
    EXPECT_TRUE(store->Get(kept[i]).equal(copies[i])) << i;
  }
}

TEST(ActivationStore, AFileThatLostItsEndGivesZerosAndAnError) {
  const testing::TempFolder folder;
  const auto store = Make(In(folder.path(), /*wait_written=*/true));
  const auto kept = store->Put(Activation({kRows, kWidth}));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (absl::StartsWith(target.string(), folder.path())) {
      ASSERT_EQ(truncate(entry.path().c_str(), 100), 0);
    }
  }
  EXPECT_TRUE(store->Get(kept).equal(at::zeros({kRows, kWidth})));
  EXPECT_EQ(store->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(store->status().message()), HasSubstr("reading activations"));
}

// Six layers with dropout, all recomputed.
class Net : public torch::nn::Module {
 public:
  Net() {
    for (int64_t i = 0; i < 6; ++i) {
      weights_.push_back(
          register_parameter("w" + std::to_string(i), at::randn({kWidth, kWidth}) * 0.2));
    }
  }
  at::Tensor Loss(const at::Tensor& rows) {
    at::Tensor h = rows;
    for (const at::Tensor& weight : weights_) {
      h = Recompute(
          [this, weight](const at::Tensor& x) {
            return x + at::dropout(at::tanh(x.matmul(weight)), 0.3, is_training());
          },
          h);
    }
    return h.square().sum();
  }

 private:
  std::vector<at::Tensor> weights_;
};

struct Outcome {
  std::vector<double> numbers;
  StepReport last;
  absl::Status status;
};

Outcome Train(const std::vector<std::string>& overrides, rlim_t disk_bytes = RLIM_INFINITY) {
  at::set_num_threads(1);
  const testing::TempFolder folder;
  std::vector<std::string> all = {"train_micro_batch_size_per_gpu=1",
                                  "gradient_accumulation_steps=2"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  auto job = testing::MakeTestJob({.run_dir = folder.path(), .overrides = all});
  EXPECT_TRUE(job.ok()) << job.status();
  at::manual_seed(5);
  Net net;
  Outcome run;
  auto engine = Engine::Create(**job, net);
  if (!engine.ok()) {
    run.status = engine.status();
    return run;
  }
  const SmallDisk disk(disk_bytes);
  struct Source {
    absl::StatusOr<at::Tensor> Next() { return at::randn({kRows, kWidth}); }
  } source;
  for (int step = 0; step < 4 && run.status.ok(); ++step) {
    const auto report = (*engine)->Step(
        source, [&](const at::Tensor& rows) { return Loss(net.Loss(rows), kRows); });
    run.status = report.status();
    if (report.ok()) {
      run.numbers.push_back(report->loss);
      run.numbers.push_back(report->grad_norm);
      run.last = *report;
    }
  }
  return run;
}

std::string InFile(const testing::TempFolder& folder) {
  return absl::StrCat("activation_checkpointing.nvme_path=", folder.path());
}

TEST(ActivationOffload, TrainsToTheBitAsWithoutItAtEveryStage) {
  const testing::TempFolder disk;
  const std::string memory = "activation_checkpointing.cpu_checkpointing=true";
  const std::string waits = "activation_checkpointing.synchronize_checkpoint_boundary=true";
  for (const int stage : {0, 1, 2, 3}) {
    const std::string at_stage = absl::StrCat("zero_optimization.stage=", stage);
    const Outcome near = Train({at_stage});
    ASSERT_EQ(near.numbers.size(), 8U) << near.status;
    for (const std::vector<std::string>& tier :
         {std::vector<std::string>{memory}, {InFile(disk)}, {InFile(disk), waits}}) {
      std::vector<std::string> overrides = tier;
      overrides.push_back(at_stage);
      const Outcome far = Train(overrides);
      EXPECT_EQ(far.numbers, near.numbers) << stage << far.status;
      // The first segment's input is the batch, which the graph does not differentiate.
      EXPECT_GE(far.last.memory.far_activations, 5 * kInputBytes);
      EXPECT_LE(far.last.memory.far_activations, kPlacesMax * kInputBytes);
    }
    EXPECT_EQ(near.last.memory.far_activations, 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk.path()));
}

TEST(ActivationOffload, TheReportTellsOfLessNearMemoryAndOfTheTimesOfBackward) {
  const testing::TempFolder disk;
  const Outcome near = Train({});
  const Outcome far =
      Train({InFile(disk), "activation_checkpointing.synchronize_checkpoint_boundary=true"});
  EXPECT_LT(far.last.memory.activations, near.last.memory.activations - 4 * kInputBytes);
  EXPECT_GT(far.last.recompute_s, 0);
  EXPECT_LT(far.last.recompute_s + far.last.activation_wait_s, far.last.backward_s);
}

TEST(ActivationOffload, AFullDiskEndsTheStepWithOneLineAndATemporaryCode) {
  const testing::TempFolder disk;
  const Outcome run = Train({InFile(disk)}, 2 * kInputBytes);
  EXPECT_TRUE(run.numbers.empty());
  EXPECT_EQ(ExitCodeFor(run.status), kExitTemporary) << run.status;
  EXPECT_THAT(std::string(run.status.message()), HasSubstr("activation_checkpointing.nvme_path"));
  EXPECT_THAT(std::string(run.status.message()), Not(HasSubstr("\n")));
}

TEST(ActivationOffload, AFolderThatIsNoneEndsCreate) {
  const Outcome run = Train({"activation_checkpointing.nvme_path=/nowhere/at/all"});
  EXPECT_EQ(ExitCodeFor(run.status), kExitUsage) << run.status;
  EXPECT_THAT(std::string(run.status.message()), HasSubstr("\"/nowhere/at/all\""));
}

TEST(ActivationOffload, AGraphThatIsDroppedLeavesNothingInTheTier) {
  const auto store = Make(In(""));
  Net net;
  {
    const at::Tensor loss = net.Loss(at::randn({kRows, kWidth}));
    EXPECT_EQ(store->far_bytes(), 5 * kInputBytes);
  }
  store->Settle();
  EXPECT_EQ(store->far_bytes(), 0);
}

TEST(ActivationOffload, AnInputThatChangesAfterwardsIsAnErrorAsInLibTorch) {
  const auto store = Make(In("", /*wait_written=*/true));
  const at::Tensor x = at::randn({kRows, kWidth}).requires_grad_();
  at::Tensor middle = x * 2;
  const at::Tensor y = Recompute([](const at::Tensor& in) { return in.sin(); }, middle);
  {
    const at::NoGradGuard no_grad;
    middle.add_(1);
  }
  try {
    y.sum().backward();
    FAIL() << "the gradient of other values";
  } catch (const std::exception& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("modified by an inplace operation"));
  }
}

TEST(ActivationOffload, AGraphThatIsKeptCanGoBackwardTwice) {
  const auto store = Make(In(""));
  const at::Tensor x = at::randn({kRows, kWidth}).requires_grad_();
  const auto layer = [](const at::Tensor& in) { return in.sin() * in; };
  const at::Tensor y = Recompute(layer, Recompute(layer, x * 2)).sum();
  y.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(x.grad().equal(once * 2));
}

}  // namespace
}  // namespace dtrain::activation_store_test
