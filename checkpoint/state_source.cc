#include "checkpoint/state_source.h"

#include <algorithm>
#include <numeric>
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

// Both have a name and a type.
template <typename T>
bool IsWrittenBefore(const T& a, const T& b) {
  return ComesBefore(SafetensorsDType(a.dtype), a.name, SafetensorsDType(b.dtype), b.name);
}

}  // namespace

void SpanSource::SortAsWritten() {
  std::vector<size_t> order(model.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return IsWrittenBefore(model[a].spec, model[b].spec); });
  std::vector<NamedTensor> sorted;
  sorted.reserve(model.size());
  std::vector<int64_t> place_of(model.size());
  for (const size_t from : order) {
    place_of[from] = static_cast<int64_t>(sorted.size());
    sorted.push_back(std::move(model[from]));
  }
  model = std::move(sorted);
  for (Gather& gather : gathers) {
    gather.model = gather.model < 0 ? -1 : place_of[static_cast<size_t>(gather.model)];
  }
  std::sort(gathers.begin(), gathers.end(), IsWrittenBefore<Gather>);
}

absl::StatusOr<std::vector<TensorSpec>> SpanSource::ModelTensors() {
  DT_RETURN_IF_ERROR(status);
  if (!std::exchange(is_complete_, true)) {
    for (const auto& part : complete) {
      part(*this);
    }
  }
  DT_RETURN_IF_ERROR(status);
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
