// A step's gradients accumulated whole in the flat gradient buffer: what ZeRO stages 0 and 1 share.
//
// The first fresh gradient of a step is copied into its view of the buffer (12 bytes of traffic a
// parameter, against 20 for adding into a zeroed view) and .grad becomes the view, so that later
// micro-batches accumulate in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/flat_parameters.h"

namespace dtrain {

class WholeGradients {
 public:
  // REQUIRES: `flat` has gradients and outlives this object.
  explicit WholeGradients(FlatParameters& flat);

  // Autograd has accumulated into the .grad of a parameter. Unimplemented: it is not dense.
  absl::Status Take(size_t index);
  // After the step's last backward: an unused parameter's gradient is zero, since other ranks may
  // have used it.
  void ZeroUnused();
  // Ends a step: every .grad is undefined.
  void Release();

 private:
  FlatParameters& flat_;
  std::vector<uint8_t> filled_;  // By parameter: the view holds this step's gradient.
};

}  // namespace dtrain
