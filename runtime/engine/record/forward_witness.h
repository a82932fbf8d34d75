// Finds the parameters and the module of a model that an exception came from, as far as LibTorch
// knew.
//
// LibTorch's operations say what they read (shard/storage_observer.h), so an operation that throws
// names its parameters; of another exception the parameters that were read last are known. Watching
// costs every operation 0.2 us, so only the first step and the first evaluation are watched, in
// which nearly all such errors come. All are watched where operations are observed anyway or the
// user asks for it. For errors in a step that is not watched, LibTorch's backtrace may name a
// module's forward. Not thread-safe: for the thread that runs the model.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "runtime/shard/storage_observer.h"

namespace torch::nn {
class Module;
}

namespace dtrain {

class ForwardWitness {
 public:
  enum class Pass : uint8_t { kForward, kBackward, kEvaluation };

  // REQUIRES: `module` outlives this object, and has its parameters where they stay.
  explicit ForwardWitness(const torch::nn::Module& module) : module_(module) {}

  // Watches all passes from now on, not only the first of each kind.
  void WatchAlways() { always_ = true; }
  // The calling thread begins to run the model.
  void Begin(Pass pass);
  // All of a step's, or an evaluation's, went well: their like is not watched again.
  void End(Pass pass);
  // Describes an exception that was thrown since Begin, or says how to know more; "": nothing is
  // known.
  std::string Describe(const std::exception& error) const;

 private:
  const torch::nn::Module& module_;
  bool always_ = false;
  Pass pass_ = Pass::kForward;     // The last one begun.
  std::array<bool, 3> seen_ = {};  // By Pass.
  std::optional<StorageObserver> watch_;
};

}  // namespace dtrain
