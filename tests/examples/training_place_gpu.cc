#include <c10/core/CachingDeviceAllocator.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/status.h"
#include "runtime/job/group_options.h"
#include "runtime/job/job_device.h"
#include "tests/examples/training_place.h"
#include "tests/runtime/testing/gpu_for_tests.h"

namespace {

namespace profiler = torch::autograd::profiler;
using Kind = libkineto::ActivityType;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr char kStep[] = "dtrain::watched_step";

// Calls of CUDA's runtime and driver that wait. Copies that are not asynchronous wait too.
constexpr std::array kWaiting = {"cudaStreamSynchronize", "cudaDeviceSynchronize",
                                 "cudaEventSynchronize",  "cudaMemcpy",
                                 "cudaMemcpy2D",          "cudaMemset",
                                 "cuStreamSynchronize",   "cuCtxSynchronize",
                                 "cuEventSynchronize"};
constexpr std::array kOfMemory = {
    "cudaMalloc",  "cudaMallocAsync", "cudaMallocHost", "cudaHostAlloc", "cudaHostRegister",
    "cudaFree",    "cudaFreeAsync",   "cudaFreeHost",   "cuMemAlloc",    "cuMemFree",
    "cuMemCreate", "cuMemMap",        "cuMemUnmap",     "cuMemRelease"};

// "cudaMalloc" and, as CUPTI may write it, "cudaMalloc_v3020" or "cuMemAlloc_v2".
template <size_t kSize>
bool IsOneOf(const std::array<const char*, kSize>& calls, const std::string& name) {
  return std::any_of(calls.begin(), calls.end(), [&](const std::string& call) {
    return name == call || name.rfind(call + "_", 0) == 0;
  });
}

// The costs of the calls between the step's begin and its end on the host. The profiler's own
// calls, to start and to stop, lie before and after.
absl::StatusOr<StepCosts> CostsOf(const std::vector<profiler::KinetoEvent>& events) {
  const auto step = std::find_if(events.begin(), events.end(), [](const auto& event) {
    return event.name() == kStep && event.deviceType() == c10::DeviceType::CPU;
  });
  if (step == events.end()) {
    return absl::InternalError("the profiler did not record the step");
  }
  StepCosts costs;
  int calls = 0;
  for (const profiler::KinetoEvent& event : events) {
    const auto type = static_cast<Kind>(event.activityType());
    const std::string name = event.name();
    if (type == Kind::GPU_MEMCPY && name.find("Pageable") != std::string::npos) {
      costs.waits.push_back(name);  // Its time does not matter: it comes later than its call.
    }
    if ((type != Kind::CUDA_RUNTIME && type != Kind::CUDA_DRIVER) ||
        event.startNs() < step->startNs() || event.startNs() > step->endNs()) {
      continue;
    }
    ++calls;
    if (IsOneOf(kWaiting, name)) {
      costs.waits.push_back(name);
    } else if (IsOneOf(kOfMemory, name)) {
      costs.memory.push_back(name);
    }
  }
  if (calls == 0) {
    return absl::InternalError("CUPTI recorded no call of CUDA: is another profiler attached?");
  }
  return costs;
}

// The first recording of a process sets CUPTI up.
absl::StatusOr<StepCosts> Record(const std::function<absl::Status()>& step) {
  const ProfilerConfig options(ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU, ActivityType::CUDA};
  profiler::prepareProfiler(options, activities);
  profiler::enableProfiler(options, activities);
  absl::Status status;
  {
    at::RecordFunction range(at::RecordScope::USER_SCOPE);
    if (range.isActive()) {
      range.before(kStep);
    }
    status = step();
  }
  const auto result = profiler::disableProfiler();
  DT_RETURN_IF_ERROR(status);
  return CostsOf(result->events());
}

class GpuPlace final : public TrainingPlace {
 public:
  absl::Status Attach(dtrain::Job::State& state) override {
    DT_RETURN_IF_ERROR(dtrain::OpenDevice(state, dtrain::GroupOptionsFrom(*state.config)));
    device_ = state.device->tensors();
    return device_.is_cpu() ? absl::InternalError("the job chose the host") : absl::OkStatus();
  }
  absl::StatusOr<StepCosts> Watch(const std::function<absl::Status()>& step,
                                  bool /*by_graphs*/) override {
    // Its segments that grow are calls of the driver, which CUPTI is not asked to record.
    const auto taken = [&] {
      const auto stats = at::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
      return std::pair(stats.num_device_alloc, stats.num_device_free);
    };
    const auto before = taken();
    DT_ASSIGN_OR_RETURN(StepCosts costs, Record(step));
    if (taken() != before) {
      costs.memory.emplace_back("LibTorch's allocator asked the driver");
    }
    return costs;
  }

 private:
  at::Device device_ = at::kCPU;
};

}  // namespace

absl::Status TrainingPlace::Here() { return dtrain::testing::TheGpu().status(); }

// Heads and widths that flash and cuDNN take. Products in fp32 sum in another order than the
// host's; those of bf16 are rounded elsewhere too (attention keeps its scores in fp32), to 8 bits.
// Seven steps are as many as the batches take to be learnt by heart.
const TrainingScale& TrainingPlace::Scale() {
  static const TrainingScale scale = {
      .sizes =
          {.vocabulary = 512, .heads = 4, .head_dim = 64, .intermediate = 512, .positions = 128},
      .sequence = 64,
      .steps = 7,
      .attention = {AttentionBackend::kFlash, AttentionBackend::kCudnn, AttentionBackend::kMath},
      .fp32_tolerance = 1e-4,
      .bf16_tolerance = 2e-2,
      .fp8_steps = 1000,
      .fp8_by_graphs = true,
      .fp8_gap = 0.005};
  return scale;
}

std::unique_ptr<TrainingPlace> TrainingPlace::Open() { return std::make_unique<GpuPlace>(); }
