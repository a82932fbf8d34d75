// Whether a CPU multiplies slower in the types that a training asks for than in fp32, as one
// without instructions for them does.
#pragma once

#include <string>

#include "dtrain/config.h"

namespace dtrain {

// FLOP/s of the matrix products of a linear layer; 0: the training does not use the type.
struct ProductRates {
  double fp32 = 0;
  double narrow = 0;  // In bf16 or fp16.
  double fp8 = 0;     // A CPU emulates it.
};

// Measures the products of this rank's threads on the host, in the types that a training in bf16 or
// fp16 uses. Takes a few milliseconds, up to about 0.3 s where a product takes a thousand times as
// long as in fp32. Draws no random number of the run's.
ProductRates MeasureProducts(const Config& config);

// Says that products take longer than in fp32, how much, and what to do. "" where they take less
// than 1.5 times as long. `type`: "bf16" or "fp16". Pure.
std::string SlowProductsWarning(const std::string& type, const ProductRates& rates);

}  // namespace dtrain
