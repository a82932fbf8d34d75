// Tells tensors that a ConstructionScope put into files from those in memory.
#pragma once

#include "ATen/core/Tensor.h"

namespace dtrain {

bool IsInConstructionFile(const at::Tensor& tensor);

}  // namespace dtrain
