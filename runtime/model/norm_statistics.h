// Running statistics in fp32 beside 2-byte weights, for the normalization layers of torch.
#pragma once

namespace dtrain {

// From now on at::batch_norm and at::instance_norm, by which torch's BatchNorm and InstanceNorm
// layers compute, take a weight and a bias of bf16 or fp16 as fp32 ones where the running
// statistics are fp32. LibTorch's batch_norm refuses such a call. Its instance_norm takes it, but
// passes the statistics through the type of the weight, or of the input if there is no weight: in a
// 2-byte type they would not follow small changes. Other calls are LibTorch's own. Once;
// thread-safe; process-wide.
void TakeFp32Statistics();

}  // namespace dtrain
