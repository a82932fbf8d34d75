// The update of an optimizer on a GPU: one kernel a piece, which reads the step's numbers from
// device memory, so that the host need not know the norm. Work that looks beyond single elements is
// queued before, collectives included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/nccl/device_group.h"
#include "kernels/cuda/cuda_table.h"
#include "runtime/device/device.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {

// Everything of a step, for rules that look beyond elements. `scalars` are in device memory, those
// of the groups of parameters one after the other.
struct WholeUpdateOnDevice {
  const Device& device;
  comm::DeviceGroup& group;
  const EngineState& state;
  ReducedGradient gradient;
  absl::Span<const std::vector<UpdatePiece>> pieces;
  const std::byte* scalars = nullptr;
};

class DeviceRule {
 public:
  virtual ~DeviceRule() = default;
  // The bytes of one parameter group's scalars, and where among them `skip` is
  // (kernels::StepScalarsView).
  virtual size_t scalar_bytes() const = 0;
  virtual size_t skip_offset() const = 0;
  // Writes one group's scalars; grad_scale and skip are set on the device later.
  virtual void Scalars(const UpdateStep& step, const ParamSettings& settings, void* to) const = 0;
  // Allocates the memory in which Prepare works.
  virtual absl::Status Allocate(const Device& /*device*/, int /*ranks*/) {
    return absl::OkStatus();
  }
  // Whether Prepare does anything: then an update is more than kernels on one stream.
  virtual bool looks_beyond_elements() const { return false; }
  // Collective. Queues on the compute stream, and on the group's, what comes before the pieces.
  virtual absl::Status Prepare(const WholeUpdateOnDevice& /*update*/) { return absl::OkStatus(); }
  // Queues the update of a piece on `stream`. `memory` and `scalars` are device pointers.
  virtual absl::Status Update(const kernels::CudaKernelTable& kernels, const UpdatePiece& piece,
                              const PieceMemory& memory, const void* scalars,
                              CudaStream stream) const = 0;
};

// Unimplemented names an optimizer that has no CUDA form: a program's own. (Where the host updates,
// none is needed.) `layout` must outlive the rule.
absl::StatusOr<std::unique_ptr<DeviceRule>> MakeDeviceRule(const Config& config,
                                                           const UpdateRule& rule,
                                                           const plan::ParamLayout& layout);

// The parts of MakeDeviceRule that look beyond elements.
std::unique_ptr<DeviceRule> MakeLambOnDevice(const OptimizerConfig& optimizer,
                                             const plan::ParamLayout& layout);
std::unique_ptr<DeviceRule> MakeMuonOnDevice(const OptimizerConfig& optimizer,
                                             const plan::ParamLayout& layout);

// Queues the update of `pieces`, whose groups' scalars start `scalars`, and rounds what is kept in
// fp16 from its master.
absl::Status UpdatePiecesOnDevice(const DeviceRule& rule, const kernels::CudaKernelTable& kernels,
                                  const EngineState& state, const ReducedGradient& gradient,
                                  absl::Span<const UpdatePiece> pieces, const std::byte* scalars,
                                  CudaStream stream);

}  // namespace dtrain
