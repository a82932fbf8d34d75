#include "runtime/engine/whole_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "runtime/engine/gradient_sync.h"

namespace dtrain {
namespace {

// gradient -> view, of equal shape.
void CopyGradient(const at::Tensor& gradient, const at::Tensor& view, bool on_host) {
  if (on_host && gradient.is_contiguous() && gradient.scalar_type() == at::kFloat) {
    std::memcpy(view.mutable_data_ptr(), gradient.const_data_ptr(), view.nbytes());
  } else {
    view.copy_(gradient);
  }
}

}  // namespace

WholeGradients::WholeGradients(FlatParameters& flat)
    : flat_(flat),
      places_(flat.parameters().size(), Place::kFree),
      lent_(flat.parameters().size()) {
  if (flat.dtype() == DType::kFloat32) {
    homes_.emplace(flat.parameters(), static_cast<ops::GradientHomes&>(*this));
  }
}

void WholeGradients::EndBackward() {
  in_backward_ = false;
  for (size_t i = 0; i < lent_.size(); ++i) {
    MoveLentAway(i);
  }
}

at::Tensor WholeGradients::TakeHome(size_t index) {
  if (!in_backward_ || places_[index] != Place::kFree) {
    return {};
  }
  places_[index] = Place::kTaken;
  at::Tensor home = flat_.gradient_views()[index].detach();
  lent_[index].emplace(home.getIntrusivePtr());
  return home;
}

void WholeGradients::MoveLentAway(size_t index) {
  if (!lent_[index].has_value()) {
    return;
  }
  if (auto held = lent_[index]->lock(); held.defined()) {
    at::Tensor lent(std::move(held));
    lent.set_data(lent.clone());
  }
  lent_[index].reset();
}

absl::Status WholeGradients::Take(size_t index) {
  if (places_[index] == Place::kFilled) {
    return absl::OkStatus();
  }
  at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
  DT_RETURN_IF_ERROR(CheckDense(flat_, index, gradient));
  const at::Tensor& view = flat_.gradient_views()[index];
  if (gradient.const_data_ptr() != view.const_data_ptr()) {
    MoveLentAway(index);
    CopyGradient(gradient, view, flat_.device().is_host());
  }
  gradient = view;
  places_[index] = Place::kFilled;
  return absl::OkStatus();
}

void WholeGradients::ZeroUnused() {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i] != Place::kFilled) {
      at::Tensor view = flat_.gradient_views()[i];
      if (flat_.device().is_host()) {
        std::memset(view.mutable_data_ptr(), 0, view.nbytes());
      } else {
        view.zero_();
      }
    }
  }
}

std::vector<uint8_t> WholeGradients::in_place() const {
  std::vector<uint8_t> filled(places_.size());
  std::transform(places_.begin(), places_.end(), filled.begin(),
                 [](Place place) { return static_cast<uint8_t>(place == Place::kFilled); });
  return filled;
}

void WholeGradients::SetInPlace(const std::vector<uint8_t>& in_place) {
  in_backward_ = false;
  for (size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& gradient = flat_.parameters()[i].mutable_grad();
    if (in_place[i] == 0) {
      gradient = at::Tensor();  // A backward that broke off may have left one.
    } else if (places_[i] != Place::kFilled) {
      gradient = flat_.gradient_views()[i];
    }
    places_[i] = in_place[i] != 0 ? Place::kFilled : Place::kFree;
  }
}

void WholeGradients::Release() {
  in_backward_ = false;
  flat_.ClearGradients();
  std::fill(places_.begin(), places_.end(), Place::kFree);
}

}  // namespace dtrain
