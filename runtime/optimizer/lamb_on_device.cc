// LAMB on a GPU: moments of all pieces, norms of whole parameters over the ranks, then the weights.
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/optimizer/device_rule.h"
#include "runtime/optimizer/lamb_blocks.h"
#include "runtime/optimizer/step_options.h"

namespace dtrain {
namespace {

using kernels::LambStepScalars;
using kernels::LambSums;

// REQUIRES: no two pieces share a norm block of one parameter: shards are cut at whole ones.
class LambOnDevice final : public DeviceRule {
 public:
  LambOnDevice(const OptimizerConfig& optimizer, const plan::ParamLayout& layout)
      : optimizer_(optimizer), entries_(layout.entries().size()), blocks_(layout) {}
  size_t scalar_bytes() const override { return sizeof(LambStepScalars); }
  size_t skip_offset() const override { return offsetof(LambStepScalars, skip); }
  void Scalars(const UpdateStep& step, const ParamSettings& settings, void* to) const override {
    static_assert(offsetof(LambStepScalars, grad_scale) == 0);
    *static_cast<LambStepScalars*>(to) =
        kernels::MakeLambStepScalars(LambOptionsOf(optimizer_, step, settings));
  }
  absl::Status Allocate(const Device& device, int /*ranks*/) override {
    const size_t bytes = sums_bytes() + entries_ * sizeof(float);
    DT_ASSIGN_OR_RETURN(memory_, DeviceMemory::Create(device, bytes, "norms of parameters"));
    return absl::OkStatus();
  }
  bool looks_beyond_elements() const override { return true; }

  absl::Status Prepare(const WholeUpdateOnDevice& update) override {
    const kernels::CudaKernelTable& kernels = update.device.kernels();
    const CudaStream stream = update.device.kernel_stream();
    DT_RETURN_IF_ERROR(update.device.Zero(sums(), sums_bytes()));
    std::vector<const LambStepScalars*> scalars(entries_, nullptr);
    for (const std::vector<UpdatePiece>& list : update.pieces) {
      for (const UpdatePiece& piece : list) {
        const auto entry = static_cast<size_t>(piece.entry);
        scalars[entry] = reinterpret_cast<const LambStepScalars*>(update.scalars) + piece.settings;
        const PieceMemory memory = MemoryOf(update.state, update.gradient, piece);
        DT_RETURN_IF_ERROR(kernels.lamb_moments(
            piece.elements, piece.flat, memory.weights, memory.gradient, memory.fp32_state(0),
            memory.fp32_state(1), sums() + blocks_.of(piece), scalars[entry], stream));
      }
    }
    if (update.state.shards != nullptr) {  // Each rank has its own blocks; the others are zeros.
      DT_RETURN_IF_ERROR(
          update.group
              .AllReduce({sums(), sums_bytes(), DType::kFloat64, update.device.place()},
                         comm::ReduceOp::kSum, {.name = "norms of parameters"})
              .status());
      DT_RETURN_IF_ERROR(update.group.JoinStream(update.device.stream()));
    }
    for (size_t i = 0; i < scalars.size(); ++i) {
      if (scalars[i] != nullptr) {
        DT_RETURN_IF_ERROR(kernels.lamb_trust(sums() + blocks_.first(i), blocks_.count(i),
                                              scalars[i], trust_step() + i, stream));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Update(const kernels::CudaKernelTable& kernels, const UpdatePiece& piece,
                      const PieceMemory& memory, const void* scalars,
                      CudaStream stream) const override {
    return kernels.lamb_apply(piece.elements, memory.weights, memory.fp32_state(0),
                              memory.fp32_state(1), memory.bf16, trust_step() + piece.entry,
                              static_cast<const LambStepScalars*>(scalars), stream);
  }

 private:
  size_t sums_bytes() const { return static_cast<size_t>(blocks_.total()) * sizeof(LambSums); }
  LambSums* sums() const { return static_cast<LambSums*>(memory_->data()); }
  // Step size times trust of each entry, behind the sums.
  float* trust_step() const { return reinterpret_cast<float*>(sums() + blocks_.total()); }

  const OptimizerConfig optimizer_;
  const size_t entries_;  // Parameters of the layout.
  const LambBlocks blocks_;
  std::shared_ptr<DeviceMemory> memory_;
};

}  // namespace

std::unique_ptr<DeviceRule> MakeLambOnDevice(const OptimizerConfig& optimizer,
                                             const plan::ParamLayout& layout) {
  return std::make_unique<LambOnDevice>(optimizer, layout);
}

}  // namespace dtrain
