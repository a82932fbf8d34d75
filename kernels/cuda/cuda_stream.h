// The stream type of CUDA launch wrappers, without the CUDA headers.
#pragma once

struct CUstream_st;

namespace dtrain {

// The same type as cudaStream_t. nullptr (the default stream) is refused by the wrappers.
using CudaStream = ::CUstream_st*;

}  // namespace dtrain
