#include "runtime/gradients/whole_gradients.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/ops/device_kernels.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/variable.h"

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

// Runs when all operations of a graph have given a parameter's gradient. Where all of it went home
// autograd accumulates nothing, and the hook for what it accumulates does not run.
class PutHome final : public ops::GradientHomeHook {
 public:
  PutHome(std::weak_ptr<const std::function<void(size_t)>> ready, size_t index)
      : ready_(std::move(ready)), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    const auto ready = ready_.lock();
    if (ready != nullptr && !inputs[0].defined()) {
      (*ready)(index_);
    }
    return outputs;
  }

 private:
  const std::weak_ptr<const std::function<void(size_t)>> ready_;
  const size_t index_;
};

}  // namespace

absl::Status CheckDense(const FlatParameters& flat, size_t index, const at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrFormat(
      "the gradient of %s is sparse; allowed: dense (for an embedding, sparse=false)",
      flat.layout().entries()[index].name));
}

WholeGradients::WholeGradients(FlatParameters& flat, std::function<void(size_t)> ready)
    : flat_(flat),
      put_home_(std::make_shared<const std::function<void(size_t)>>(
          [this, ready = std::move(ready)](size_t index) {
            if (put_[index] != 0) {
              ready(index);
            }
          })),
      places_(flat.parameters().size(), Place::kFree),
      put_(flat.parameters().size()),
      awaited_(flat.parameters().size()),
      homes_(flat.parameters(), *this) {}

absl::Status WholeGradients::BeginStep() {
  if (in_step_) {
    return absl::OkStatus();
  }
  const at::NoGradGuard no_grad;
  in_step_ = true;
  absl::Status taken;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (flat_.parameters()[i].mutable_grad().defined()) {
      taken.Update(Take(i));
    }
  }
  return taken;
}

absl::Status WholeGradients::BeginBackward() {
  in_backward_ = true;
  DT_RETURN_IF_ERROR(BeginStep());
  // Between the backwards of a step a program may have put another tensor in place of the sum so
  // far, which then is the sum, or have cleared it, which loses nothing.
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < places_.size(); ++i) {
    at::Tensor& gradient = flat_.parameters()[i].mutable_grad();
    const at::Tensor& view = flat_.gradient_views()[i];
    if (places_[i] == Place::kFilled && !gradient.is_same(view)) {
      if (gradient.defined()) {
        DT_RETURN_IF_ERROR(CheckDense(flat_, i, gradient));
        CopyGradient(gradient, view, flat_.device().is_host());
      }
      gradient = view;
    }
  }
  return absl::OkStatus();
}

absl::Status WholeGradients::EndBackward() {
  in_backward_ = false;
  absl::Status taken;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i] == Place::kPut) {  // Autograd did not come to it after all.
      taken.Update(Take(i));
    }
  }
  return taken;
}

ops::GradientHome WholeGradients::TakeHome(size_t index, bool can_add) {
  const bool holds = places_[index] != Place::kFree;
  const at::Tensor& view = flat_.gradient_views()[index];
  // Autograd orders streams by the gradients that it is given. It is not given one that was written
  // to its place directly, and the reduction waits for the compute stream alone.
  const bool in_order =
      flat_.device().is_host() || ops::LaunchesOn(view, flat_.device().kernel_stream());
  if (!in_backward_ || !in_order || (holds && !can_add) || !AwaitAutograd(index)) {
    return {};
  }
  if (!holds) {
    places_[index] = Place::kPut;
  }
  put_[index] = 1;
  return {.place = view, .holds = holds};
}

// The node lives while a graph does that uses the parameter. To keep it longer, for one hook for
// all times, would tie it to the stream that was current when it was made.
bool WholeGradients::AwaitAutograd(size_t index) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(flat_.parameters()[index]);
  if (node == nullptr) {
    return false;
  }
  if (awaited_[index].lock() != node) {
    node->add_post_hook(std::make_unique<PutHome>(put_home_, index));
    awaited_[index] = node;
  }
  return true;
}

absl::Status WholeGradients::Take(size_t index) {
  put_[index] = 0;
  if (places_[index] == Place::kFilled) {
    return TakeMore(index);
  }
  at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
  const at::Tensor& view = flat_.gradient_views()[index];
  if (gradient.defined()) {
    DT_RETURN_IF_ERROR(CheckDense(flat_, index, gradient));
    if (places_[index] == Place::kPut) {
      at::Tensor(view).add_(gradient);  // A gradient that no operation could put there itself.
    } else {
      CopyGradient(gradient, view, flat_.device().is_host());
    }
  }
  gradient = view;
  places_[index] = Place::kFilled;
  return absl::OkStatus();
}

// Autograd adds to the view, which is .grad, unless the program has cleared that since.
absl::Status WholeGradients::TakeMore(size_t index) {
  at::Tensor& gradient = flat_.parameters()[index].mutable_grad();
  at::Tensor view = flat_.gradient_views()[index];
  if (gradient.defined() && !gradient.is_same(view)) {
    DT_RETURN_IF_ERROR(CheckDense(flat_, index, gradient));
    // With create_graph autograd adds out of place: the sum, and not what is new.
    const bool sum = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    if (sum) {
      view.copy_(gradient);
    } else {
      view.add_(gradient);
    }
  }
  gradient = view;
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
                 [](Place place) { return static_cast<uint8_t>(place != Place::kFree); });
  return filled;
}

void WholeGradients::SetInPlace(const std::vector<uint8_t>& in_place) {
  in_backward_ = false;
  std::fill(put_.begin(), put_.end(), uint8_t{0});
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
  in_step_ = false;
  in_backward_ = false;
  flat_.ClearGradients();
  std::fill(put_.begin(), put_.end(), uint8_t{0});
  std::fill(places_.begin(), places_.end(), Place::kFree);
}

}  // namespace dtrain
