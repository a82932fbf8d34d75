// The GEMM rate of this rank's threads, measured in this run: what "GEMM fraction" divides by.
#pragma once

namespace dtrain {

// FLOP/s of an fp32 matrix product of 1,024 x 1,024 x 1,024 with random operands, best of three;
// takes about 0.1 s. All ranks of a node should call it at the same time, as they train at the same
// time.
double MeasureGemmRate();

}  // namespace dtrain
