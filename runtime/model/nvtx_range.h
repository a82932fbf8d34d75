// A range for NVIDIA's tools (Nsight Systems), from construction to destruction, on this thread.
// It does nothing without a tool, or in a build without NVTX.
#pragma once

namespace dtrain {

class NvtxRange {
 public:
  explicit NvtxRange(const char* name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace dtrain
