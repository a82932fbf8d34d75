#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/status.h"
#include "runtime/ops/device_kernels.h"
#include "tests/examples/training_place.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/runtime/testing/launch_count.h"
#include "tests/runtime/testing/operation_count.h"

namespace {

using Names = std::vector<std::string>;

// Operations of LibTorch that give new memory to what the calling thread calls. Those inside a
// launch of a graph are not seen: their memory is the graph's.
class Allocations {
 public:
  Allocations() {
    Seen().clear();
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          const std::string name = function.name();
          if (name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0) {
            Seen().push_back(name);
          }
          return nullptr;
        }));
  }
  Allocations(const Allocations&) = delete;
  Allocations& operator=(const Allocations&) = delete;
  ~Allocations() { at::removeCallback(handle_); }
  static Names& Seen() {
    static Names seen;
    return seen;
  }

 private:
  at::CallbackHandle handle_;
};

// The fakes' kernels; launches of one of them are counted.
const dtrain::kernels::CudaKernelTable* fakes = nullptr;
int64_t fp8_scales = 0;
const dtrain::kernels::CudaKernelTable* CountingTable(dtrain::comm::FakeCuda* cuda) {
  fakes = dtrain::testing::FakeKernelTable(cuda);
  static dtrain::kernels::CudaKernelTable table;
  table = *fakes;
  table.fp8_scale = [](const dtrain::kernels::Fp8ScaleArgs& args, dtrain::CudaStream stream) {
    ++fp8_scales;
    return fakes->fp8_scale(args, stream);
  };
  return &table;
}

// The fake GPU of one rank alone, which needs no NCCL.
class FakePlace final : public TrainingPlace {
 public:
  FakePlace() { at::set_num_threads(1); }  // More only wait for each other beside such tensors.
  ~FakePlace() override {
    dtrain::ops::SetGpuForTesting(nullptr, nullptr);
    EXPECT_THAT(gpu_.cuda.violations(), ::testing::IsEmpty());
    EXPECT_EQ(gpu_.cuda.live_handles(), 0);
  }
  absl::Status Attach(dtrain::Job::State& state) override {
    DT_RETURN_IF_ERROR(gpu_.Attach(state, /*staged=*/true, dtrain::comm::GroupOptions{}));
    dtrain::ops::SetGpuForTesting(CountingTable(&gpu_.cuda),
                                  dtrain::Device::KernelStream(gpu_.cuda.host_stream()));
    return absl::OkStatus();
  }
  absl::StatusOr<StepCosts> Watch(const std::function<absl::Status()>& step,
                                  bool by_graphs) override {
    const int synchronizations = gpu_.cuda.synchronizations();
    const int handles = gpu_.cuda.live_handles();
    const dtrain::testing::WaitingOperations waiting;
    StepCosts costs;
    {
      const Allocations allocations;
      const dtrain::testing::LaunchCount launches;
      const int64_t scales = fp8_scales;
      DT_RETURN_IF_ERROR(step());
      costs.launches = launches.count();
      costs.fp8_scales = fp8_scales - scales;
      if (by_graphs) {  // Eager steps allocate and free tensors all the time.
        costs.memory = Allocations::Seen();
      }
    }
    const auto add = [](Names& to, const char* name, int times) {
      to.insert(to.end(), static_cast<size_t>(times), name);
    };
    add(costs.waits, "an operation that waits", dtrain::testing::WaitingOperations::Count());
    add(costs.waits, "StreamSynchronize", gpu_.cuda.synchronizations() - synchronizations);
    add(costs.memory, "a block, a stream or an event that stays",
        std::abs(gpu_.cuda.live_handles() - handles));
    return costs;
  }

 private:
  dtrain::comm::FakeFabric fabric_;
  dtrain::testing::FakeGpu gpu_{&fabric_};
};

}  // namespace

absl::Status TrainingPlace::Here() { return absl::OkStatus(); }

// Small, because an emulated kernel runs its threads one after the other. Its sums have a GPU's
// order, its products the host's. `./dev test long` also runs the pairs that are left out.
const TrainingScale& TrainingPlace::Scale() {
  static const TrainingScale scale = {
      .sizes = {.vocabulary = 64, .heads = 2, .head_dim = 16, .intermediate = 64, .positions = 32},
      .sequence = 16,
      .steps = 7,
      .every_pair = std::getenv("DTRAIN_TEST_LONG") != nullptr,
      .attention = {AttentionBackend::kFlash},
      .fp32_tolerance = 1e-5,
      .bf16_tolerance = 1e-2};
  return scale;
}

std::unique_ptr<TrainingPlace> TrainingPlace::Open() { return std::make_unique<FakePlace>(); }
