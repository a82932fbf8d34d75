#include "bench/mfu/step_profile.h"

#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/system/kept_heap.h"

namespace dtrain::bench {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

constexpr char kStep[] = "dtrain::bench_step";

TimedRange RangeOf(const profiler::KinetoEvent& event) {
  return {.name = event.name(),
          .begin_ns = static_cast<int64_t>(event.startNs()),
          .end_ns = static_cast<int64_t>(event.endNs())};
}

// Whether the event is work of a GPU. User ranges (dtrain's phases, this step) are on the same
// device and also span the time between kernels, so they do not count.
bool IsDeviceWork(const profiler::KinetoEvent& event) {
  using libkineto::ActivityType;
  const auto type = static_cast<ActivityType>(event.activityType());
  return event.deviceType() == c10::DeviceType::CUDA &&
         (type == ActivityType::CONCURRENT_KERNEL || type == ActivityType::GPU_MEMCPY ||
          type == ActivityType::GPU_MEMSET);
}

double Seconds(const TimedRange& range) {
  return static_cast<double>(range.end_ns - range.begin_ns) * 1e-9;
}

// Bytes of an element of the first input. A product's and attention's inputs all have one type.
int64_t ElementBytes(const profiler::KinetoEvent& event) {
  if (!event.hasTypes() || event.dtypes().empty()) {
    return 4;
  }
  const std::string& type = event.dtypes()[0];
  return type == "double" ? 8 : type == "float" ? 4 : type.find("Float8") != type.npos ? 1 : 2;
}

OperationCall CallOf(const profiler::KinetoEvent& event, double seconds) {
  return {.name = event.name(),
          .inputs = Shapes(event.shapes().begin(), event.shapes().end()),
          .element_bytes = ElementBytes(event),
          .seconds = seconds};
}

// Seconds of the kernels that each operation launched, by its correlation.
std::map<uint64_t, double> KernelSeconds(const std::vector<profiler::KinetoEvent>& events) {
  std::map<uint64_t, double> seconds;
  for (const profiler::KinetoEvent& event : events) {
    if (IsDeviceWork(event)) {
      seconds[event.linkedCorrelationId()] += Seconds(RangeOf(event));
    }
  }
  return seconds;
}

absl::StatusOr<StepProfile> Evaluate(const std::vector<profiler::KinetoEvent>& events,
                                     bool on_gpu) {
  const profiler::KinetoEvent* step = nullptr;
  for (const profiler::KinetoEvent& event : events) {
    if (event.name() == kStep && event.deviceType() == c10::DeviceType::CPU) {
      step = &event;
    }
  }
  if (step == nullptr) {
    return absl::InternalError("the profiler did not record the step");
  }
  const TimedRange whole = RangeOf(*step);
  const std::map<uint64_t, double> on_device =
      on_gpu ? KernelSeconds(events) : std::map<uint64_t, double>();
  std::vector<TimedRange> thread;
  std::vector<TimedRange> kernels;
  std::vector<OperationCall> calls;
  for (const profiler::KinetoEvent& event : events) {
    const TimedRange range = RangeOf(event);
    if (IsDeviceWork(event)) {
      kernels.push_back(range);
      continue;
    }
    if (event.deviceType() != c10::DeviceType::CPU || range.begin_ns < whole.begin_ns ||
        range.end_ns > whole.end_ns) {
      continue;
    }
    // A GPU's backward runs on a thread of autograd's own; a CPU's on this one.
    if (event.startThreadId() == step->startThreadId() && event.name() != kStep) {
      thread.push_back(range);
    }
    if (event.hasShapes()) {
      const auto found = on_device.find(event.correlationId());
      calls.push_back(
          CallOf(event, on_gpu ? found == on_device.end() ? 0 : found->second : Seconds(range)));
    }
  }
  if (on_gpu && kernels.empty()) {
    return absl::InternalError("CUPTI recorded no kernel: is another profiler attached?");
  }
  StepProfile result;
  result.breakdown = on_gpu ? BreakDownDevice(kernels, whole.begin_ns, whole.end_ns)
                            : BreakDownThread(std::move(thread), whole.begin_ns, whole.end_ns);
  result.groups = GroupCalls(calls);
  if (on_gpu) {
    result.kernels = TotalsByName(kernels);
    result.idle_after = IdleAfterKernels(std::move(kernels), whole.begin_ns, whole.end_ns);
  }
  result.seconds = Seconds(whole);
  return result;
}

}  // namespace

absl::StatusOr<StepProfile> ProfileStep(const std::function<absl::Status()>& step, bool on_gpu) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (on_gpu) {
    activities.insert(ActivityType::CUDA);
  }
  if (!on_gpu) {
    WarmFreedMemory(kProfilersShare);
  }
  const ProfilerConfig options(ProfilerState::KINETO, /*report_input_shapes=*/true);
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
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  DT_RETURN_IF_ERROR(status);
  return Evaluate(result->events(), on_gpu);
}

}  // namespace dtrain::bench
