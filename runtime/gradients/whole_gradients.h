// A step's gradients accumulated whole in the flat gradient buffer: what ZeRO stages 0 and 1 share.
//
// The first fresh gradient of a step is copied into its view of the buffer (12 bytes of traffic a
// parameter, against 20 for adding into a zeroed view) and .grad becomes the view, so that later
// micro-batches accumulate in place. Operations that ask for a gradient's home
// (ops/gradient_home.h) write it there, or on a GPU add it, and nothing is copied; autograd then
// gets an undefined gradient, so that nothing is added twice however backwards nest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/ops/gradient_home.h"

namespace torch::autograd {
struct Node;
}

namespace dtrain {

// Unimplemented names a parameter whose gradient is not dense.
absl::Status CheckDense(const FlatParameters& flat, size_t index, const at::Tensor& gradient);

class WholeGradients : private ops::GradientHomes {
 public:
  // `ready` is called for a parameter whose whole gradient of a backward went home, where autograd
  // would have accumulated it and run the hook that calls Take. REQUIRES: `flat` has gradients and
  // outlives this object.
  WholeGradients(FlatParameters& flat, std::function<void(size_t index)> ready);

  // Takes what backwards of the program's own left in .grad since the step began, or, without
  // EngineOptions::zero_grad, since Release. Nothing where it was called before. An error is one of
  // Take.
  absl::Status BeginStep();
  // From then to Release. In between what autograd accumulates is the program's and stays where it
  // is.
  bool in_step() const { return in_step_; }
  // Around each backward, the first of which begins the step: what asks for a gradient outside of
  // it gets memory of its own. .grad is the view from then on. An error is one of Take.
  absl::Status BeginBackward();
  absl::Status EndBackward();
  // Autograd has accumulated into the .grad of a parameter, or would have. Called in its mode, by
  // its hook. Unimplemented: the gradient is not dense.
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
  // kPut: the view holds this step's gradient, and .grad does not know it yet.
  enum class Place : uint8_t { kFree, kPut, kFilled };

  ops::GradientHome TakeHome(size_t index, bool can_add) override;
  // Has `ready` called when autograd comes to the parameter. False: it will not come.
  bool AwaitAutograd(size_t index);
  // Take, where the view holds gradients of the step already.
  absl::Status TakeMore(size_t index);

  FlatParameters& flat_;
  // Autograd's nodes may outlive this object, and see then that nobody listens.
  const std::shared_ptr<const std::function<void(size_t)>> put_home_;
  bool in_step_ = false;
  bool in_backward_ = false;
  std::vector<Place> places_;  // By parameter; kFilled: the view holds this step's gradient.
  std::vector<uint8_t> put_;   // By parameter: something was put home since Take.
  std::vector<std::weak_ptr<torch::autograd::Node>> awaited_;  // By parameter.
  ops::GradientHomesOf homes_;
};

}  // namespace dtrain
