// The program's own optimizer.
#include <algorithm>
#include <array>
#include <utility>

#include "runtime/model/torch_pool.h"
#include "runtime/optimizer/update_rule.h"

namespace dtrain {
namespace {

constexpr int64_t kPartElements = 8192;  // The clipped gradient of a part fits into a core's cache.

class OwnRule final : public UpdateRule {
 public:
  OwnRule(std::shared_ptr<const Optimizer> own, const plan::ParamLayout& layout)
      : own_(std::move(own)), layout_(layout) {}
  std::string name() const override { return own_->name(); }
  std::vector<std::string> states() const override { return own_->states(); }
  bool by_parameter() const override { return true; }

  void Update(const UpdateStep& step, const UpdatePiece& piece,
              const PieceMemory& memory) const override {
    const size_t states = own_->states().size();
    TorchParallelFor(piece.elements, kPartElements, [&](int64_t begin, int64_t end) {
      for (int64_t from = begin; from < end; from += kPartElements) {
        UpdatePart(step, piece, memory, states, from, std::min(end, from + kPartElements));
      }
    });
  }

 private:
  void UpdatePart(const UpdateStep& step, const UpdatePiece& piece, const PieceMemory& memory,
                  size_t states, int64_t begin, int64_t end) const {
    const auto count = static_cast<size_t>(end - begin);
    std::array<float, kPartElements> gradient;
    kernels::ScaleCpu(end - begin, {memory.gradient + begin}, {gradient.data()},
                      static_cast<float>(step.gradient_scale), SerialFor);
    if (const auto limit = static_cast<float>(step.gradient_limit); limit > 0) {
      std::transform(gradient.begin(), gradient.begin() + static_cast<ptrdiff_t>(count),
                     gradient.begin(), [&](float g) { return std::clamp(g, -limit, limit); });
    }
    std::array<absl::Span<float>, kStatesMax> parts;
    for (size_t i = 0; i < states; ++i) {
      parts[i] = {memory.fp32_state(i) + begin, count};
    }
    const plan::LayoutEntry& entry = layout_.entries()[static_cast<size_t>(piece.entry)];
    own_->Update({.name = entry.name,
                  .shape = entry.shape,
                  .begin = piece.flat - entry.offset + begin,
                  .weights = {memory.weights + begin, count},
                  .gradient = {gradient.data(), count},
                  .states = {parts.data(), states},
                  .update = step.update - step.of(piece).missed,
                  .settings = step.of(piece)});
    if (memory.bf16 != nullptr) {
      kernels::CopyCpu(end - begin, {memory.weights + begin},
                       {memory.bf16 + begin, DType::kBFloat16}, SerialFor);
    }
  }

  const std::shared_ptr<const Optimizer> own_;
  const plan::ParamLayout& layout_;
};

}  // namespace

std::unique_ptr<UpdateRule> MakeOwnRule(std::shared_ptr<const Optimizer> own,
                                        const plan::ParamLayout& layout) {
  return std::make_unique<OwnRule>(std::move(own), layout);
}

}  // namespace dtrain
