#include <algorithm>

#include "base/check.h"
#include "kernels/quantize/int8_blocks.h"
#include "kernels/simd/simd_table.h"
#include "kernels/write_mode.h"

namespace dtrain::kernels {
namespace {

StateType BlockTypeOf(DType dtype) {
  DT_CHECK(dtype == DType::kFloat32 || dtype == DType::kBFloat16)
      << " int8 blocks hold fp32 or bf16, not " << DTypeName(dtype);
  return dtype == DType::kFloat32 ? kStateF32 : kStateBf16;
}

constexpr size_t kPackedBlock = 256;

int64_t Grain(int64_t block) { return std::max<int64_t>(1, kElementGrain / block); }

}  // namespace

void QuantizeInt8Cpu(const QuantizeInt8Args& args, ParallelFor parallel_for) {
  DT_CHECK_GE(args.block, 1);
  const auto loop = ActiveTable().int8_blocks.quantize[BlockTypeOf(args.src.dtype)];
  parallel_for(Int8Blocks(args.n, args.block), Grain(args.block),
               [&](int64_t begin, int64_t end) { loop(args, begin, end); });
}

void DequantizeInt8Cpu(const DequantizeInt8Args& args, ParallelFor parallel_for) {
  DT_CHECK_GE(args.block, 1);
  const auto loop = ActiveTable().int8_blocks.dequantize[BlockTypeOf(args.dst.dtype)];
  const int64_t bytes = args.n * static_cast<int64_t>(DTypeBytes(args.dst.dtype));
  const Write write = WriteFor(bytes, args.accumulate);
  parallel_for(Int8Blocks(args.n, args.block), Grain(args.block),
               [&](int64_t begin, int64_t end) { loop(args, begin, end, write); });
}

void PackInt8Blocks(const float* values, size_t count, uint8_t* out, float* error) {
  const size_t scales = count / kPackedBlock * sizeof(float);
  QuantizeInt8Cpu({.n = static_cast<int64_t>(count),
                   .block = kPackedBlock,
                   .src = {values, DType::kFloat32},
                   .values = reinterpret_cast<int8_t*>(out + scales),
                   .scales = reinterpret_cast<float*>(out),
                   .error = error},
                  SerialFor);
}

void UnpackInt8Blocks(const uint8_t* packed, size_t count, float* out, bool add) {
  const size_t scales = count / kPackedBlock * sizeof(float);
  DequantizeInt8Cpu({.n = static_cast<int64_t>(count),
                     .block = kPackedBlock,
                     .values = reinterpret_cast<const int8_t*>(packed + scales),
                     .scales = reinterpret_cast<const float*>(packed),
                     .dst = {out, DType::kFloat32},
                     .accumulate = add},
                    SerialFor);
}

}  // namespace dtrain::kernels
