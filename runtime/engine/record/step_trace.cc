#include "runtime/engine/record/step_trace.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/log.h"
#include "base/system/kept_heap.h"
#include "torch/csrc/autograd/profiler_kineto.h"

namespace dtrain {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::set<ActivityType> Activities(bool gpu) {
  return gpu ? std::set<ActivityType>{ActivityType::CPU, ActivityType::CUDA}
             : std::set<ActivityType>{ActivityType::CPU};
}

// The time from which the timestamps of Kineto's file count; 0 when the file does not say.
int64_t BaseNanosOf(const std::string& path) {
  const std::string name = "\"baseTimeNanoseconds\": ";
  const absl::StatusOr<std::string> text = ReadFile(path);
  const size_t at = text.ok() ? text->find(name) : std::string::npos;
  return at == std::string::npos ? 0 : std::strtoll(&(*text)[at + name.size()], nullptr, 10);
}

}  // namespace

StepTrace::~StepTrace() {
  if (recording_) {  // The run ended among the chosen steps: better a part than nothing.
    Write();
  }
}

void StepTrace::Begin(int64_t step) {
  if (recording_ || config_.steps == 0 || step != config_.first_step) {
    return;
  }
  const ProfilerConfig options(ProfilerState::KINETO, /*report_input_shapes=*/true,
                               /*profile_memory=*/true);
  if (!gpu_) {
    WarmFreedMemory(kProfilersShare);
  }
  profiler::prepareProfiler(options, Activities(gpu_));
  profiler::enableProfiler(options, Activities(gpu_));
  memory_ = std::make_unique<MemoryTimeline>(sampler_);
  recording_ = true;
}

void StepTrace::End(int64_t step) {
  if (recording_ && step >= config_.first_step + config_.steps - 1) {
    Write();
  }
}

void StepTrace::Write() {
  recording_ = false;
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  const std::unique_ptr<MemoryTimeline> memory = std::move(memory_);
  const std::string path = path_prefix_ + ".json";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  result->save(path);
  const absl::Status written =
      memory->Write(path_prefix_ + "-memory.json", BaseNanosOf(path), rank_);
  if (!std::filesystem::exists(path, error) || !written.ok()) {
    DT_LOG(Warning) << "the trace of steps " << config_.first_step << " to "
                    << config_.first_step + config_.steps - 1 << " could not be written to " << path
                    << (written.ok() ? "" : ": ") << written.message();
  }
}

}  // namespace dtrain
