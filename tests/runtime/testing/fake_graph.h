// TensorGraph on the fake GPU, whose tensors are the host's: LibTorch's operations become part of a
// capture of FakeCuda's host_stream(), among the kernels and copies that are queued there.
//
// Like those of a real graph, captured operations do not run: tensors that they make hold NaN until
// a launch, tensors that they write to stay as they were, and the generator gives its numbers to
// each launch anew. An operation that would wait for the device throws CUDA's words and spoils the
// capture.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "c10/core/impl/LocalDispatchKeySet.h"
#include "comm/nccl/fake/fake_cuda.h"
#include "runtime/device/tensor_graph.h"
#include "runtime/model/cpu_rng.h"

namespace dtrain::testing {

// LibTorch's cache of device memory. Operations since it was emptied have left their blocks there,
// and a graph cannot use them, because its memory comes from a pool of its own.
struct FakePool {
  int64_t emptied_at = -1;     // FakeCuda::queued() then.
  bool fits_one_pass = false;  // The device has no memory for a micro-batch twice.
};

// One at a time captures. REQUIRES: `cuda` and `pool` outlive it.
class FakeTensorGraph final : public TensorGraph {
 public:
  FakeTensorGraph(comm::FakeCuda* cuda, const FakePool* pool) : cuda_(cuda), pool_(pool) {}
  ~FakeTensorGraph() override;
  absl::Status Begin() override;
  absl::Status End() override;
  absl::Status Launch() override;

 private:
  absl::Status Check(comm::CudaResult result, const char* what) const;

  comm::FakeCuda* const cuda_;
  const FakePool* const pool_;
  bool out_of_memory_ = false;
  comm::CudaGraph* graph_ = nullptr;
  std::optional<CpuRngSnapshot> rng_;                            // At Begin.
  std::optional<c10::impl::IncludeDispatchKeyGuard> listening_;  // While it captures.
};

}  // namespace dtrain::testing
