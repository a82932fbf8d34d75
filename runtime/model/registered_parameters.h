// The parameters that a module has registered, as an engine found them: what became of them since.
//
// A member of the module that is assigned another tensor (net->a->weight = at::zeros(...)) leaves
// the registered one in its place, and is seen here by nothing: its parameter gets no gradient any
// more. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace c10 {
struct TensorImpl;
}
namespace torch::nn {
class Module;
}

namespace dtrain {

class RegisteredParameters {
 public:
  // REQUIRES: somebody keeps the tensors for as long as this object lives: another one at an
  // address of theirs would be taken for them.
  explicit RegisteredParameters(const torch::nn::Module& module);

  // FailedPrecondition names a parameter that `module`, the same one, has replaced, added, removed,
  // frozen or unfrozen since. Compares an address and a flag of each parameter.
  absl::Status CheckUnchanged(const torch::nn::Module& module) const;

 private:
  struct Registered {
    std::string name;
    const c10::TensorImpl* tensor = nullptr;
    bool trains = false;
  };
  // Whether what `module` and those below it register is what comes from `place` on, behind which
  // `place` then is.
  bool Holds(const torch::nn::Module& module, size_t& place) const;
  // The error that names what changed; OK when only the order did.
  absl::Status Difference(const torch::nn::Module& module) const;

  std::vector<Registered> all_;  // In named_parameters' order; shared ones several times.
};

}  // namespace dtrain
