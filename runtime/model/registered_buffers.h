// The buffers that a module has registered, as an engine found them: what became of them since.
//
// A member of the module that is assigned another tensor (net->mean = at::zeros(...)) leaves the
// registered one in its place, and is seen here by nothing. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace c10 {
struct TensorImpl;
}
namespace torch::nn {
class Module;
}

namespace dtrain {

class RegisteredBuffers {
 public:
  // REQUIRES: somebody keeps the tensors for as long as this object lives: another one at an
  // address of theirs would be taken for them.
  explicit RegisteredBuffers(const torch::nn::Module& module);

  // FailedPrecondition names a buffer that `module`, the same one, has replaced, added or removed
  // since, or given another type, shape or device. Values may be others, in other memory too
  // (set_data).
  absl::Status CheckUnchanged(const torch::nn::Module& module) const;

 private:
  struct Registered {
    std::string name;
    const c10::TensorImpl* tensor = nullptr;
    c10::ScalarType type = c10::ScalarType::Undefined;
    c10::Device device = c10::Device(c10::DeviceType::CPU);
    std::vector<int64_t> shape;
  };
  // Whether what `module` and those below it register is what comes from `place` on, behind which
  // `place` then is.
  bool Holds(const torch::nn::Module& module, size_t& place) const;
  // The error that names what changed; OK when only the order did.
  absl::Status Difference(const torch::nn::Module& module) const;

  std::vector<Registered> all_;  // In named_buffers' order; shared ones several times.
};

}  // namespace dtrain
