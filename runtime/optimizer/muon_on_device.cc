// Muon on a GPU: hidden matrices by Newton-Schulz, everything else by AdamW.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "base/status.h"
#include "runtime/memory/tensor_over.h"
#include "runtime/optimizer/device_rule.h"
#include "runtime/optimizer/newton_schulz.h"
#include "runtime/optimizer/step_options.h"

namespace dtrain {
namespace {

using kernels::AdamWStepScalars;
using kernels::MuonStepScalars;

// Matrices are taken in rounds of as many as there are ranks: each rank orthogonalises one and
// hands it to the others. A step that is skipped leaves zeros, whose product is zeros.
class MuonOnDevice final : public DeviceRule {
 public:
  MuonOnDevice(const OptimizerConfig& optimizer, const plan::ParamLayout& layout)
      : optimizer_(optimizer), layout_(layout), matrices_(OrthogonalEntries(optimizer, layout)) {}
  size_t scalar_bytes() const override { return std::max(sizeof(Muon), sizeof(AdamW)); }
  size_t skip_offset() const override { return offsetof(MuonStepScalars, skip); }
  void Scalars(const UpdateStep& step, const ParamSettings& settings, void* to) const override {
    static_assert(offsetof(Muon, grad_scale) == 0 && offsetof(AdamW, grad_scale) == 0);
    if (settings.orthogonal) {
      *static_cast<Muon*>(to) =
          kernels::MakeMuonStepScalars(MuonOptionsOf(optimizer_, step, settings));
    } else {
      *static_cast<AdamW*>(to) =
          kernels::MakeAdamWStepScalars(AdamWOptionsOf(optimizer_, step, settings));
    }
  }
  // Memory for the largest round serves all of them.
  absl::Status Allocate(const Device& device, int ranks) override {
    const auto round = static_cast<size_t>(ranks);
    for (size_t first = 0; first < matrices_.size(); first += round) {
      int64_t elements = 0;
      for (size_t i = first; i < std::min(matrices_.size(), first + round); ++i) {
        elements += ElementsOf(matrices_[i]);
      }
      round_elements_ = std::max(round_elements_, elements);
    }
    DT_ASSIGN_OR_RETURN(
        memory_, DeviceMemory::Create(device, static_cast<size_t>(round_elements_) * sizeof(float),
                                      "a round of Muon's matrices"));
    return absl::OkStatus();
  }
  bool looks_beyond_elements() const override { return true; }

  absl::Status Prepare(const WholeUpdateOnDevice& update) override {
    const at::NoGradGuard no_grad;
    Pieces pieces(layout_.entries().size());
    for (const std::vector<UpdatePiece>& list : update.pieces) {
      for (const UpdatePiece& piece : list) {
        pieces[static_cast<size_t>(piece.entry)].push_back(piece);
      }
    }
    const auto ranks = static_cast<size_t>(update.group.size());
    for (size_t first = 0; first < matrices_.size(); first += ranks) {
      const std::vector<size_t> round(matrices_.begin() + static_cast<std::ptrdiff_t>(first),
                                      matrices_.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                              matrices_.size(), first + ranks)));
      DT_RETURN_IF_ERROR(Round(update, pieces, round));
    }
    return absl::OkStatus();
  }

  absl::Status Update(const kernels::CudaKernelTable& kernels, const UpdatePiece& piece,
                      const PieceMemory& memory, const void* scalars,
                      CudaStream stream) const override {
    if (std::binary_search(matrices_.begin(), matrices_.end(), static_cast<size_t>(piece.entry))) {
      return absl::OkStatus();  // Prepare has done it.
    }
    return kernels.adamw(piece.elements, memory.weights, memory.gradient, memory.fp32_state(0),
                         memory.fp32_state(1), memory.bf16, static_cast<const AdamW*>(scalars),
                         stream);
  }

 private:
  using Muon = MuonStepScalars;
  using AdamW = AdamWStepScalars;
  using Pieces =
      std::vector<std::vector<UpdatePiece>>;  // The pieces that this rank owns, by entry.

  static int64_t Aligned(int64_t elements) {
    constexpr int64_t kAlign = plan::ParamLayout::kAlignElements;
    return (elements + kAlign - 1) / kAlign * kAlign;
  }
  int64_t ElementsOf(size_t entry) const { return Aligned(layout_.entries()[entry].elements); }

  // The entries of `round`, ascending: directions of all ranks' parts, one matrix of them by this
  // rank, all from their ranks, and the step along them.
  absl::Status Round(const WholeUpdateOnDevice& update, const Pieces& pieces,
                     const std::vector<size_t>& round) const {
    const Device& device = update.device;
    const at::Tensor memory = TensorOver(memory_, round_elements_, at::kFloat, device.tensors());
    std::vector<float*> places;
    int64_t elements = 0;
    at::Tensor mine;
    for (const size_t entry : round) {
      if (static_cast<int>(places.size()) == update.group.rank()) {
        mine = memory.narrow(0, elements, layout_.entries()[entry].elements)
                   .view(layout_.entries()[entry].shape);
      }
      places.push_back(static_cast<float*>(memory_->data()) + elements);
      elements += ElementsOf(entry);
    }
    const auto buffer = [&](float* data, int64_t count) {
      return comm::Buffer{data, static_cast<size_t>(count) * sizeof(float), DType::kFloat32,
                          device.place()};
    };
    DT_RETURN_IF_ERROR(device.Zero(places[0], static_cast<size_t>(elements) * sizeof(float)));
    DT_RETURN_IF_ERROR(ForPieces(pieces, round, [&](const UpdatePiece& piece, size_t i) {
      const PieceMemory memory_of = MemoryOf(update.state, update.gradient, piece);
      return device.kernels().muon_direction(piece.elements, memory_of.gradient,
                                             memory_of.fp32_state(0), PlaceOf(piece, places[i]),
                                             ScalarsOf(update, piece), device.kernel_stream());
    }));
    if (update.state.shards != nullptr) {  // Each element is one rank's; the others add zeros.
      DT_RETURN_IF_ERROR(update.group
                             .AllReduce(buffer(places[0], elements), comm::ReduceOp::kSum,
                                        {.name = "momentum of Muon"})
                             .status());
      DT_RETURN_IF_ERROR(update.group.JoinStream(device.stream()));
    }
    if (mine.defined()) {
      mine.copy_(NewtonSchulz(mine));
    }
    for (size_t i = 0; i < round.size(); ++i) {
      DT_RETURN_IF_ERROR(update.group
                             .Broadcast(buffer(places[i], layout_.entries()[round[i]].elements),
                                        static_cast<int>(i), {.name = "update of Muon"})
                             .status());
    }
    DT_RETURN_IF_ERROR(update.group.JoinStream(device.stream()));
    return ForPieces(pieces, round, [&](const UpdatePiece& piece, size_t i) {
      const PieceMemory memory_of = MemoryOf(update.state, update.gradient, piece);
      return device.kernels().muon_apply(piece.elements, memory_of.weights,
                                         PlaceOf(piece, places[i]), memory_of.bf16, /*scale=*/1,
                                         ScalarsOf(update, piece), device.kernel_stream());
    });
  }

  // body(piece, place of its entry in `round`) for what this rank owns of the round.
  template <class Body>
  static absl::Status ForPieces(const Pieces& pieces, const std::vector<size_t>& round, Body body) {
    for (size_t i = 0; i < round.size(); ++i) {
      for (const UpdatePiece& piece : pieces[round[i]]) {
        DT_RETURN_IF_ERROR(body(piece, i));
      }
    }
    return absl::OkStatus();
  }
  // The place of a piece in its matrix, which begins at `matrix`.
  float* PlaceOf(const UpdatePiece& piece, float* matrix) const {
    return matrix + (piece.flat - layout_.entries()[static_cast<size_t>(piece.entry)].offset);
  }
  const Muon* ScalarsOf(const WholeUpdateOnDevice& update, const UpdatePiece& piece) const {
    return reinterpret_cast<const Muon*>(update.scalars +
                                         static_cast<size_t>(piece.settings) * scalar_bytes());
  }

  const OptimizerConfig optimizer_;
  const plan::ParamLayout& layout_;
  const std::vector<size_t> matrices_;  // Entries, ascending.
  int64_t round_elements_ = 0;
  std::shared_ptr<DeviceMemory> memory_;  // [round_elements_] fp32.
};

}  // namespace

std::unique_ptr<DeviceRule> MakeMuonOnDevice(const OptimizerConfig& optimizer,
                                             const plan::ParamLayout& layout) {
  return std::make_unique<MuonOnDevice>(optimizer, layout);
}

}  // namespace dtrain
