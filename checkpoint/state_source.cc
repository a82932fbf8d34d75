#include "checkpoint/state_source.h"

#include <utility>

#include "base/status.h"

namespace dtrain::checkpoint {
namespace {

std::vector<TensorSpec> Specs(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const NamedTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
  }
  return specs;
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> SpanSource::ModelTensors() {
  DT_RETURN_IF_ERROR(status);
  if (!std::exchange(is_complete_, true)) {
    for (const auto& part : complete) {
      part(*this);
    }
  }
  return Specs(model);
}
absl::Status SpanSource::GiveModel(size_t index, ByteSink sink) { return sink(model[index].bytes); }
absl::StatusOr<std::vector<TensorSpec>> SpanSource::StateTensors() { return Specs(state); }
absl::Status SpanSource::GiveState(size_t index, ByteSink sink) { return sink(state[index].bytes); }
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> SpanSource::ModelFiles() {
  return model_files;
}
absl::StatusOr<JobState> SpanSource::Job() { return job; }
absl::StatusOr<Json> SpanSource::Rank() { return rank; }

}  // namespace dtrain::checkpoint
