// Bytes of tensors that are alive, and the most that ever were, of the thread whose
// c10::DebugInfoKind::PROFILER_STATE it is.
#pragma once

#include <algorithm>
#include <cstdint>

#include "c10/core/Allocator.h"

namespace dtrain::testing {

class TensorBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*data*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

}  // namespace dtrain::testing
