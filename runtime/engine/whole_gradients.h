// A step's gradients accumulated whole in the flat gradient buffer: what ZeRO stages 0 and 1 share.
//
// The first fresh gradient of a step is copied into its view of the buffer (12 bytes of traffic a
// parameter, against 20 for adding into a zeroed view) and .grad becomes the view, so that later
// micro-batches accumulate in place. Operations that ask for a gradient's home
// (ops/gradient_home.h) write it there, and nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/flat_parameters.h"
#include "runtime/ops/gradient_home.h"

namespace dtrain {

class WholeGradients : private ops::GradientHomes {
 public:
  // REQUIRES: `flat` has gradients and outlives this object.
  explicit WholeGradients(FlatParameters& flat);

  // Around each backward: what asks for a gradient outside of it gets memory of its own.
  void BeginBackward() { in_backward_ = true; }
  void EndBackward();
  // Autograd has accumulated into the .grad of a parameter. Unimplemented: it is not dense.
  absl::Status Take(size_t index);
  // After the step's last backward: an unused parameter's gradient is zero, since other ranks may
  // have used it.
  void ZeroUnused();
  // By parameter: the view holds this step's gradient, and .grad is the view. A launch of a graph
  // runs no hook: what it leaves is told.
  std::vector<uint8_t> in_place() const;
  void SetInPlace(const std::vector<uint8_t>& in_place);
  // Ends a step: every .grad is undefined.
  void Release();

 private:
  enum class Place : uint8_t { kFree, kTaken, kFilled };

  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  at::Tensor TakeHome(size_t index) override;
  // What was lent and somebody still holds gets memory of its own: autograd, in a backward around
  // the one that fills the view now, or a program's hook.
  void MoveLentAway(size_t index);

  FlatParameters& flat_;
  bool in_backward_ = false;
  std::vector<Place> places_;  // By parameter; kFilled: the view holds this step's gradient.
  std::vector<std::optional<WeakTensor>> lent_;  // By parameter: by TakeHome in this backward.
  std::optional<ops::GradientHomesOf> homes_;    // None where views are not the values' type.
};

}  // namespace dtrain
