// A library for NVTX_INJECTION64_PATH, as a profiler brings one: it counts the ranges that are
// pushed, by name, and those that are popped. nvtx_ranges_test opens it too, and asks.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "nvtx3/nvToolsExt.h"

namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::string, int64_t> pushed;
  int64_t popped = 0;
  int64_t depth = 0;  // Ranges that are open on the one thread that steps.
};

Counts& Seen() {
  static auto* const counts = new Counts;
  return *counts;
}

int Push(const char* message) {
  std::lock_guard lock(Seen().mutex);
  ++Seen().pushed[message];
  return static_cast<int>(Seen().depth++);
}

int Pop() {
  std::lock_guard lock(Seen().mutex);
  ++Seen().popped;
  return static_cast<int>(--Seen().depth);
}

}  // namespace

extern "C" {

// NVTX calls it when a range is pushed for the first time. 1: the library stays.
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0 ||
      size <= NVTX_CBID_CORE_RangePop) {
    return 0;
  }
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&Push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&Pop);
  return 1;
}

// How often a range of that name was pushed; null: how many were popped.
__attribute__((visibility("default"))) int64_t DtrainNvtxCount(const char* name) {
  std::lock_guard lock(Seen().mutex);
  return name == nullptr ? Seen().popped : Seen().pushed[name];
}

}  // extern "C"
