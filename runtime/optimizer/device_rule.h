// The update of an element-wise optimizer on a GPU: one kernel a piece, which reads the step's
// numbers from device memory, so that the host need not know the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda_table.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {

class DeviceRule {
 public:
  virtual ~DeviceRule() = default;
  // Of the scalars of one parameter group, and where their `skip` is: kernels::StepScalarsView.
  virtual size_t scalar_bytes() const = 0;
  virtual size_t skip_offset() const = 0;
  // Writes one group's scalars; grad_scale and skip are set on the device later.
  virtual void Scalars(const UpdateStep& step, const ParamSettings& settings, void* to) const = 0;
  // Queues the update of a piece on `stream`. `memory` and `scalars` are device pointers.
  virtual absl::Status Update(const kernels::CudaKernelTable& kernels, const UpdatePiece& piece,
                              const PieceMemory& memory, const void* scalars,
                              CudaStream stream) const = 0;
};

// Unimplemented names an optimizer that has no CUDA form: Lamb, Muon, a program's own. (Where
// states are offloaded the host updates, and none is needed.)
absl::StatusOr<std::unique_ptr<DeviceRule>> MakeDeviceRule(const Config& config,
                                                           const UpdateRule& rule);

// Queues the update of `pieces`, whose groups' scalars start `scalars`, and rounds what is kept in
// fp16 from its master.
absl::Status UpdatePiecesOnDevice(const DeviceRule& rule, const kernels::CudaKernelTable& kernels,
                                  const EngineState& state, const ReducedGradient& gradient,
                                  absl::Span<const UpdatePiece> pieces, const std::byte* scalars,
                                  CudaStream stream);

}  // namespace dtrain
