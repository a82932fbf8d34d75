// Finds the modules that zero_optimization.leaf_module names. Each is a unit of ZeRO stage 3
// (units.h). A mixture of experts must be one, since ranks use different experts. Pure;
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// A module of a model that has parameters.
struct ModuleFacts {
  std::string name;  // The name in torch::nn::Module::named_modules; "": the model itself.
  std::string type;  // The result of torch::nn::Module::name: "mixtral::SparseMoeBlockImpl".
  // The name under which it is registered first, which its parameters' names begin with.
  std::string first_name;
};

// The first names of those that `wanted` names, in the order of `modules`, each once.
// A class is compared by its name without namespaces and without "Impl", in which TORCH_MODULE
// ends, or where it has a namespace in C++'s way ("::") with that; what stands before the last dot
// of a Python class is not compared. InvalidArgument names a value that fits no module and what is
// near; DeepSpeed's default classes need fit none.
absl::StatusOr<std::vector<std::string>> FindLeafModules(absl::Span<const ModuleFacts> modules,
                                                         const LeafModuleConfig& wanted);

}  // namespace dtrain::plan
