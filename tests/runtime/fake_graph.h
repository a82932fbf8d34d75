// TensorGraph on the fake GPU, whose tensors are the host's: LibTorch's operations become part of a
// capture of FakeCuda's host_stream(), among the kernels and copies that are queued there.
//
// As with a real one, what is captured does not run: tensors that it makes hold NaN until a launch,
// what it writes to stays as it was, and the generator gives its numbers to each launch anew. An
// operation that would wait for the device throws CUDA's words and spoils the capture.
#pragma once

#include <memory>
#include <optional>

#include "c10/core/impl/LocalDispatchKeySet.h"
#include "comm/nccl/fake/fake_cuda.h"
#include "runtime/device/tensor_graph.h"
#include "runtime/engine/cpu_rng.h"

namespace dtrain::testing {

// One at a time captures. REQUIRES: `cuda` outlives it.
class FakeTensorGraph final : public TensorGraph {
 public:
  explicit FakeTensorGraph(comm::FakeCuda* cuda) : cuda_(cuda) {}
  ~FakeTensorGraph() override;
  absl::Status Begin() override;
  absl::Status End() override;
  absl::Status Launch() override;

 private:
  absl::Status Check(comm::CudaResult result, const char* what) const;

  comm::FakeCuda* const cuda_;
  comm::CudaGraph* graph_ = nullptr;
  std::optional<CpuRngSnapshot> rng_;                            // At Begin.
  std::optional<c10::impl::IncludeDispatchKeyGuard> listening_;  // While it captures.
};

}  // namespace dtrain::testing
