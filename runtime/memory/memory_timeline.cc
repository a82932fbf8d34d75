#include "runtime/memory/memory_timeline.h"

#include <mutex>
#include <utility>
#include <vector>

#include "ATen/record_function.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"

namespace dtrain {
namespace {

constexpr int64_t kIntervalNanos = 100'000;

}  // namespace

struct MemoryTimeline::State {
  struct Sample {
    int64_t unix_nanos = 0;
    MemoryReport memory;
  };

  explicit State(Sampler from) : sampler(std::move(from)) {}

  void Take(bool always) {
    std::lock_guard lock(mutex);
    const int64_t now = Clock::Real().MonotonicNanos();
    if (!always && now < next) {
      return;
    }
    samples.push_back({absl::ToUnixNanos(Clock::Real().WallTime()), sampler()});
    next = Clock::Real().MonotonicNanos() + kIntervalNanos;
  }

  const Sampler sampler;
  std::mutex mutex;
  std::vector<Sample> samples;
  int64_t next = 0;
  at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
};

namespace {

// LibTorch's callbacks are plain functions, so the timeline that they serve belongs to the process.
struct Active {
  std::mutex mutex;
  std::function<void()> take;
};

Active& TheActive() {
  static auto* const active = new Active;  // Never destroyed: operations may outlive statics.
  return *active;
}

void AfterOperation(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  Active& active = TheActive();
  std::lock_guard lock(active.mutex);
  if (active.take) {
    active.take();
  }
}

Json Counters(const MemoryReport& memory, int64_t heap_before) {
  return {{"weights", memory.weights},
          {"live weights", memory.live_weights},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"activations and temporaries", memory.activations - heap_before},
          {"far activations", memory.far_activations},
          {"resident", memory.resident}};
}

}  // namespace

MemoryTimeline::MemoryTimeline(Sampler sampler)
    : state_(std::make_unique<State>(std::move(sampler))) {
  state_->Take(/*always=*/true);
  {
    Active& active = TheActive();
    std::lock_guard lock(active.mutex);
    DT_CHECK(!active.take) << "two MemoryTimelines at a time";
    active.take = [state = state_.get()] { state->Take(/*always=*/false); };
  }
  state_->callback = at::addGlobalCallback(
      at::RecordFunctionCallback(nullptr, &AfterOperation)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
}

MemoryTimeline::~MemoryTimeline() {
  at::removeCallback(state_->callback);
  Active& active = TheActive();
  std::lock_guard lock(active.mutex);  // An operation may be in it.
  active.take = nullptr;
}

absl::Status MemoryTimeline::Write(const std::string& path, int64_t base_nanos, int rank) {
  state_->Take(/*always=*/true);
  std::lock_guard lock(state_->mutex);
  const int64_t heap_before = state_->samples.front().memory.activations;
  Json events = Json::array();
  for (const State::Sample& sample : state_->samples) {
    events.push_back({{"name", "memory"},
                      {"ph", "C"},
                      {"pid", rank},
                      {"ts", static_cast<double>(sample.unix_nanos - base_nanos) * 1e-3},
                      {"args", Counters(sample.memory, heap_before)}});
  }
  return WriteFileAtomic(path, DumpJson({{"schemaVersion", 1},
                                         {"displayTimeUnit", "ms"},
                                         {"baseTimeNanoseconds", base_nanos},
                                         {"traceEvents", std::move(events)}}) +
                                   "\n");
}

}  // namespace dtrain
