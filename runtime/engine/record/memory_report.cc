#include "runtime/engine/record/memory_report.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdio>

#include "base/unique_fd.h"
#include "comm/shared_mapping.h"

namespace dtrain {
namespace {

UniqueFd OpenStatm() { return UniqueFd(open("/proc/self/statm", O_RDONLY | O_CLOEXEC)); }

// From a file that stays open: to open it each time costs a small step more than all else here. It
// tells of the process that opened it, so one that was forked opens its own.
int64_t ResidentBytes() {
  static const pid_t process = getpid();
  static const int statm = OpenStatm().release();
  const UniqueFd own = getpid() == process ? UniqueFd() : OpenStatm();
  char text[128] = {};
  long long pages = 0;
  if (pread(own.valid() ? own.get() : statm, text, sizeof(text) - 1, 0) <= 0 ||
      std::sscanf(text, "%*d %lld", &pages) != 1) {
    return 0;
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
  report.optimizer = BytesOf(state.optimizer.master);
  for (const StateSlot& slot : state.optimizer.slots) {
    report.optimizer += BytesOf(slot.tensor);
  }
  report.activations = activations;
  report.resident = ResidentBytes() + comm::MappedPoolBytes();
  return report;
}

}  // namespace dtrain
