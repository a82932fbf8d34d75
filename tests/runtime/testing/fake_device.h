// A rank that trains on the fake GPU: device memory is host memory, kernels are CUDA's own,
// emulated, on FakeCuda's streams, NCCL is the byte-moving fake. LibTorch's tensors are CPU tensors
// over that memory, computed by the calling thread, which stands for the compute stream
// (host_stream()). The group's stream is a thread, so that an event that is missing shows as a
// wrong number sooner or later, and a forgotten wait at once.
#pragma once

#include <memory>

#include "comm/nccl/fake/fake_cuda.h"
#include "comm/nccl/fake/fake_fabric.h"
#include "comm/nccl/fake/fake_nccl.h"
#include "runtime/device/device.h"
#include "runtime/job/job_state.h"
#include "tests/runtime/testing/fake_graph.h"
#include "tests/testing/cluster.h"

namespace dtrain::testing {

// Kernels queued on `cuda`'s streams: the CUDA kernels on the emulated device, or, where the build
// has none (emulated_kernels.h), host loops with their element math for those that the engine and
// the fused operations launch; products are host loops. REQUIRES: one FakeCuda a process at a time.
const kernels::CudaKernelTable* FakeKernelTable(comm::FakeCuda* cuda);
// Whether the last table's are CUDA's: sums of rows are then in another order than on the host.
bool FakeKernelsAreEmulated();

// Makes everything of one rank; outlives its job.
class FakeGpu {
 public:
  // `fabric`: shared by the ranks' processes; made before they are forked.
  explicit FakeGpu(comm::FakeFabric* fabric, comm::FakeNcclFaults faults = {});

  // Lets `state` train here, its gradients over NCCL, or staged over another host group.
  // `group`: options as of the hosts' group. REQUIRES: state.store and state.config are set.
  absl::Status Attach(Job::State& state, bool staged, comm::GroupOptions group);

  comm::FakeCuda cuda;
  comm::FakeNccl nccl;
  absl::Status graphs;  // An error: given in place of a new TensorGraph.
  FakePool pool;
};

}  // namespace dtrain::testing
