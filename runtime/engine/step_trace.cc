#include "runtime/engine/step_trace.h"

#include <filesystem>
#include <memory>
#include <set>

#include "base/log.h"
#include "torch/csrc/autograd/profiler_kineto.h"

namespace dtrain {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

const std::set<ActivityType>& Activities() {
  static const auto* const all = new std::set<ActivityType>{ActivityType::CPU};
  return *all;
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
  profiler::prepareProfiler(options, Activities());
  profiler::enableProfiler(options, Activities());
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
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  result->save(path_);
  if (!std::filesystem::exists(path_, error)) {
    DT_LOG(Warning) << "the trace of steps " << config_.first_step << " to "
                    << config_.first_step + config_.steps - 1 << " could not be written to "
                    << path_;
  }
}

}  // namespace dtrain
