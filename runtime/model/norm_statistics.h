// Running statistics in fp32 beside 2-byte weights, for the normalization layers of torch.
#pragma once

namespace dtrain {

// From now on at::batch_norm, by which torch's BatchNorm and InstanceNorm layers compute, takes a
// weight and a bias of bf16 or fp16 as fp32 ones where the running statistics are fp32: LibTorch's
// kernels refuse them otherwise, and in a 2-byte type the statistics would not follow small
// changes. Changes no call that LibTorch takes by itself. Once; thread-safe; process-wide.
void TakeFp32Statistics();

}  // namespace dtrain
