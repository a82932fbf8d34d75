// The parameters or buffers that a module has registered, as an engine found them: what became of
// them since.
//
// A member of the module that is assigned another tensor (net->a->weight = at::zeros(...)) leaves
// the registered one in its place, and is seen here by nothing: such a parameter gets no gradient
// any more. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace at {
class Tensor;
}
namespace c10 {
struct TensorImpl;
}
namespace torch::nn {
class Module;
}

namespace dtrain {

class RegisteredTensors {
 public:
  enum class Kind { kParameters, kBuffers };

  // REQUIRES: somebody keeps the tensors for as long as this object lives: another one at an
  // address of theirs would be taken for them.
  RegisteredTensors(const torch::nn::Module& module, Kind kind);

  // FailedPrecondition names a tensor that `module`, the same one, has replaced, added or removed
  // since, a parameter that it has frozen or unfrozen, or a buffer that it has given another type,
  // shape or device. Values may be others, in other memory too (set_data). Compares an address and
  // a flag of each parameter.
  absl::Status CheckUnchanged(const torch::nn::Module& module) const;

 private:
  struct Registered {
    std::string name;
    const c10::TensorImpl* tensor = nullptr;
    bool trains = false;
    c10::ScalarType type = c10::ScalarType::Undefined;
    c10::Device device = c10::Device(c10::DeviceType::CPU);
    std::vector<int64_t> shape;
  };
  bool IsSame(const Registered& was, const at::Tensor& is) const;
  // Whether what `module` and those below it register is what comes from `place` on, behind which
  // `place` then is.
  bool Holds(const torch::nn::Module& module, size_t& place) const;
  // The error that names what changed; OK when only the order did.
  absl::Status Difference(const torch::nn::Module& module) const;
  // The error of one that is there and differs; OK if it does not.
  absl::Status DifferenceOf(const Registered& was, const at::Tensor& is) const;

  const Kind kind_;
  std::vector<Registered> all_;  // In the order of names; shared ones several times.
};

}  // namespace dtrain
