#include "runtime/engine/memory_report.h"

#include <unistd.h>

#include <cstdio>

namespace dtrain {
namespace {

int64_t ResidentBytes() {
  long long pages = 0;
  if (std::FILE* const file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%*d %lld", &pages) != 1) {
      pages = 0;
    }
    std::fclose(file);
  }
  return static_cast<int64_t>(pages) * sysconf(_SC_PAGESIZE);
}

int64_t BytesOf(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

}  // namespace

MemoryReport ReportMemory(const EngineState& state, const GradientSync& gradients,
                          int64_t activations) {
  MemoryReport report;
  const bool shared_out = state.live != nullptr;
  report.weights = BytesOf(shared_out ? state.shard_values : state.flat->values());
  for (const NamedTensor& frozen : state.flat->frozen()) {
    report.weights += BytesOf(frozen.tensor);
  }
  if (state.frozen != nullptr) {
    report.weights += BytesOf(state.frozen->values);
  }
  for (const LiveParameters* const live : state.lives()) {
    report.live_weights += live->bytes();
  }
  report.gradients = gradients.bytes();
  report.optimizer = BytesOf(state.master);
  for (const StateSlot& slot : state.slots) {
    report.optimizer += BytesOf(slot.tensor);
  }
  report.activations = activations;
  report.resident = ResidentBytes();
  return report;
}

}  // namespace dtrain
