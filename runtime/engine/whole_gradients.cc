#include "runtime/engine/whole_gradients.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "runtime/engine/gradient_sync.h"

namespace dtrain {
namespace {

// gradient -> view, of equal shape.
void CopyGradient(const at::Tensor& gradient, const at::Tensor& view) {
  const bool on_host = gradient.is_cpu() && view.is_cpu();
  if (on_host && gradient.is_contiguous() && gradient.scalar_type() == at::kFloat) {
    std::memcpy(view.mutable_data_ptr(), gradient.const_data_ptr(), view.nbytes());
  } else {
    view.copy_(gradient);
  }
}

}  // namespace

WholeGradients::WholeGradients(FlatParameters& flat)
    : flat_(flat), filled_(flat.parameters().size(), 0) {}

absl::Status WholeGradients::Take(size_t index) {
  if (filled_[index] != 0) {
    return absl::OkStatus();
  }
  at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
  DT_RETURN_IF_ERROR(CheckDense(flat_, index, gradient));
  const at::Tensor& view = flat_.gradient_views()[index];
  CopyGradient(gradient, view);
  gradient = view;
  filled_[index] = 1;
  return absl::OkStatus();
}

void WholeGradients::ZeroUnused() {
  for (size_t i = 0; i < filled_.size(); ++i) {
    if (filled_[i] == 0) {
      at::Tensor view = flat_.gradient_views()[i];
      if (view.is_cpu()) {
        std::memset(view.mutable_data_ptr(), 0, view.nbytes());
      } else {
        view.zero_();
      }
    }
  }
}

void WholeGradients::Release() {
  flat_.ClearGradients();
  std::fill(filled_.begin(), filled_.end(), uint8_t{0});
}

}  // namespace dtrain
