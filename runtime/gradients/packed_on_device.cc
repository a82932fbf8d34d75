#include "runtime/gradients/packed_on_device.h"

namespace dtrain {
namespace {

constexpr auto kBlock = static_cast<int64_t>(comm::kInt8Block);

}  // namespace

absl::Status QueuePackInt8(const kernels::CudaKernelTable& kernels, kernels::ConstFlat from,
                           int64_t elements, std::byte* out, float* error, CudaStream stream) {
  kernels::QuantizeInt8Args args;
  args.n = elements;
  args.block = kBlock;
  args.src = from;
  args.values = reinterpret_cast<int8_t*>(out);
  args.scales = reinterpret_cast<float*>(out + elements);
  args.error = error;
  return kernels.quantize_int8(args, stream);
}

absl::Status QueueUnpackInt8(const kernels::CudaKernelTable& kernels, const std::byte* packed,
                             int64_t run, int64_t elements, kernels::MutableFlat to, bool add,
                             CudaStream stream) {
  kernels::DequantizeInt8Args args;
  args.n = elements;
  args.block = kBlock;
  args.values = reinterpret_cast<const int8_t*>(packed);
  args.scales = reinterpret_cast<const float*>(packed + run);
  args.dst = to;
  args.accumulate = add;
  return kernels.dequantize_int8(args, stream);
}

}  // namespace dtrain
