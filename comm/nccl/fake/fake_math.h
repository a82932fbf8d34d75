// The arithmetic of the NCCL fake on elements of NCCL's types. Pure functions. Half types add in
// fp32 and round once.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

size_t NcclDTypeBytes(NcclDType dtype);
// output[i] = op over parts[0][i], parts[1][i], ..., in this order. Any op above kMin is a sum.
void ReduceParts(NcclDType dtype, NcclReduceOp op, absl::Span<const char* const> parts,
                 size_t count, char* output);
// data[i] *= factor, rounded to the type. REQUIRES: a floating type.
void ScaleElements(NcclDType dtype, double factor, char* data, size_t count);
// The scalar of type `dtype` at `data`.
double ReadScalar(NcclDType dtype, const void* data);

}  // namespace dtrain::comm
